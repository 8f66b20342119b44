/** Run the scenarios of a kind; `tests/support/scenarios.py` tells what is read and written. */
import { createInterface } from "node:readline";
import { SCENARIOS, World } from "./scenario.js";
import "./adding.js";
import "./reading.js";
import "./control.js";
import "./working.js";
import "./events.js";
import "./flows.js";
import "./groups.js";
import "./schedules.js";
import "./simple.js";
import "./workflows.js";
import "./forwarding.js";
import "./access.js";
import "./restarting.js";

const SCENARIO_MS_MAX = 100_000;
const CLOSE_MS_MAX = 20_000;

const { address, kind, reference, at_once: atOnce } = JSON.parse(process.argv.at(-1));

const say = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);

const answers = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

let running = 0;
let asking = [];

/** Have the broker restarted, together with all other scenarios that run: it disturbs them all. */
function ask() {
  return new Promise((resolve) => {
    asking.push(resolve);
    restartIfAllAsk();
  });
}

async function restartIfAllAsk() {
  if (asking.length === 0 || asking.length < running) return;
  const [waiting] = [asking, (asking = [])];
  say({ ask: "restart" });
  if ((await answers.next()).done) throw new Error("nobody answers");
  for (const resolve of waiting) resolve();
}

/** Fail if a promise takes too long. */
function within(ms, promise) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`not done after ${ms} ms`)), ms);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

async function runOne({ name, run }) {
  const begin = performance.now();
  const world = new World(name, { address, reference, ask });
  let error = null;
  running++;
  try {
    await within(SCENARIO_MS_MAX, run(world));
  } catch (raised) {
    error = raised?.stack ?? String(raised);
  }
  running--;
  restartIfAllAsk();
  try {
    await within(CLOSE_MS_MAX, world.close());
  } catch (raised) {
    error ??= `closing: ${raised?.stack ?? raised}`;
  }
  say({ scenario: name, error, seconds: Math.round(performance.now() - begin) / 1000 });
}

const waiting = SCENARIOS.filter((scenario) => scenario.kind === kind);
const lanes = Array.from({ length: atOnce }, async () => {
  for (let next = waiting.shift(); next; next = waiting.shift()) await runOne(next);
});
await Promise.all(lanes);
process.exit(0);
