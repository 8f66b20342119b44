// Record when the reference server runs schedules, through the nights on which clocks are moved.
//
// Run in a directory in which `npm install bun bunqueue@2.9.5` was run:
//   node_modules/.bin/bun record_cron_runs.mjs > tests/unit/engine/cron_runs.json
//
// One line per night: its zone and start, then schedule -> seconds from the start of each run.

const parser = `${process.cwd()}/node_modules/bunqueue/dist/infrastructure/scheduler/cronParser.js`;
const { getNextCronRun } = await import(parser);

const RUNS = 4;
const NIGHTS = [
  ["Europe/Rome", "2026-03-28T22:00Z"],
  ["Europe/Rome", "2026-10-24T22:00Z"],
  ["America/New_York", "2026-03-08T04:00Z"],
  ["America/New_York", "2026-11-01T03:00Z"],
  ["Australia/Lord_Howe", "2026-04-04T12:00Z"],
  ["Australia/Lord_Howe", "2026-10-03T13:00Z"],
  ["America/Sao_Paulo", "2018-11-04T00:00Z"],
  ["America/Sao_Paulo", "2019-02-16T23:00Z"],
  ["Asia/Kathmandu", "1985-12-31T15:00Z"],
  ["Asia/Kathmandu", "2026-03-28T15:00Z"],
  ["UTC", "2026-03-28T22:00Z"],
  ["UTC", "2026-10-24T22:00Z"],
];
const MINUTES = ["0", "30", "*/30", "*/10", "15,45", "5-20/5", "*"];
const HOURS = ["*", "0", "1", "2", "1-3", "*/2", "23", "1,2"];
const OTHERS = [
  "0 9 * * 1-5", "0 0 13 * 5", "*/15 2 29 3 *", "30 2 * * 0", "0 0 29 2 *", "0 12 31 * *",
  "@daily", "@hourly", "@weekly", "0 0 1-31 * 1", "0 0 */2 * 1", "15 30 2 * * *",
  "*/20 0 2 * * *", "30 59 1 * * *", "0 0 0 25 10 *",
];
const schedules = [
  ...OTHERS,
  ...MINUTES.flatMap((minute) => HOURS.map((hour) => `${minute} ${hour} * * *`)),
];

function runs(schedule, zone, start) {
  const found = [];
  let at = start;
  for (let run = 0; run < RUNS; run++) {
    at = getNextCronRun(schedule, at, zone);
    found.push((at - start) / 1000);
  }
  return found;
}

const lines = NIGHTS.map(([zone, start]) => {
  const found = schedules.map((schedule) => [schedule, runs(schedule, zone, Date.parse(start))]);
  return JSON.stringify([zone, start, Object.fromEntries(found)]);
});
console.log(`[\n${lines.join(",\n")}\n]`);
