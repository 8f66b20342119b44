// Preloaded into the original server: its clock goes CLOCK_SHIFT_MS apart from the machine's.

const machine = Date.now;
const shift = Number(process.env.CLOCK_SHIFT_MS);

globalThis.Date = class extends Date {
  constructor(...parts) {
    super(...(parts.length ? parts : [machine() + shift]));
  }

  static now() {
    return machine() + shift;
  }
};
