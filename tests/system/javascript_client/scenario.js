/**
 * What a scenario is, and what it may use.
 *
 * A scenario is an async function that takes a World and asserts. Every scenario works in queues
 * named after itself; those of one kind run side by side against one broker. The kinds stand in
 * `tests/support/scenarios.py`.
 *
 * The scenarios pass against the reference server 2.9.5 too (`tests/support/reference.py` tells how
 * to run them there). Where we do better, a scenario says what either does, by `world.reference`:
 *
 * | scenario | 2.9.5 | ours |
 * | --- | --- | --- |
 * | hears_that_a_queue_was_drained | no event | one event |
 * | waits_until_a_job_is_finished | WaitJob of a failed job answers at its deadline | at once |
 * | lets_a_parent_wait_again_for_the_rest | the parent stays parked | goes on after its last child |
 */
import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Bunqueue, FlowProducer, Queue, QueueEvents, Worker } from "bunqueue/client";
import { Engine } from "bunqueue/workflow";

export { assert };

const WAIT_MS_MAX = 45_000; // on a machine that is busy with other things
const POLL_MS = 20;
const PULL_MS = 200; // how long a worker that is being closed may still be waiting

export const SCENARIOS = [];

const listed = (kind) => (name, run) => SCENARIOS.push({ kind, name, run });
export const plain = listed("plain");
export const auth = listed("auth");
export const tls = listed("tls");
export const restart = listed("restart");

export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Wait until a claim holds and return what it said. */
export async function until(claim, waitMs = WAIT_MS_MAX) {
  const deadline = Date.now() + waitMs;
  for (;;) {
    const said = await claim();
    if (said) return said;
    if (Date.now() > deadline) {
      throw new Error(`did not come true in ${waitMs} ms: ${claim}`);
    }
    await sleep(POLL_MS);
  }
}

/** Assert that an action fails, now or later, with an error of a text, or one that a pattern fits. */
export async function raises(text, action) {
  let said;
  try {
    await action();
  } catch (error) {
    said = String(error?.message ?? error);
  }
  assert.notEqual(said, undefined, `nothing was raised, expected ${text}`);
  if (text instanceof RegExp) assert.match(said, text);
  else assert.equal(said, text);
}

/** A promise with its handles, for a handler that is to be held or watched. */
export function gate() {
  const handles = {};
  handles.opened = new Promise((resolve) => (handles.open = resolve));
  return handles;
}

/** Handlers that stay at work until they are let go; `most` is how many ever were at once. */
export function crowd() {
  const exit = gate();
  const all = { running: 0, most: 0, letGo: exit.open };
  all.handler = async () => {
    all.most = Math.max(all.most, ++all.running);
    await exit.opened;
    all.running--;
  };
  return all;
}

/** The broker as a scenario sees it; closes whatever the scenario opened. */
export class World {
  constructor(name, { address, reference, ask }) {
    this.name = name.replaceAll("_", "-");
    this.address = address;
    this.reference = reference;
    this.ask = ask;
    this.number = 0;
    this.closers = [];
  }

  /** What clients connect with. */
  connection(more = {}) {
    const { host, port, tls: caFile } = this.address;
    return { host, port, poolSize: 2, ...(caFile && { tls: { caFile } }), ...more };
  }

  /** A name for a queue of this scenario's own. */
  fresh() {
    return `${this.name}-${++this.number}`;
  }

  later(closer) {
    this.closers.push(closer);
  }

  queue({ name = this.fresh(), connection, ...options } = {}) {
    const queue = new Queue(name, { connection: this.connection(connection), ...options });
    this.later(() => queue.close());
    return queue;
  }

  /** Start a worker and wait until it runs; its errors are kept in `errors`. */
  async worker(queue, handler, { connection, ...options } = {}) {
    const name = typeof queue === "string" ? queue : queue.name;
    const worker = new Worker(name, handler, {
      connection: this.connection(connection),
      pollTimeout: PULL_MS,
      ...options,
    });
    worker.errors = [];
    worker.on("error", (error) => worker.errors.push(error));
    this.later(() => worker.close(true));
    await worker.waitUntilReady();
    return worker;
  }

  /** Take jobs by hand: a worker that does not run by itself. */
  hand(queue, options = {}) {
    return this.worker(queue, async () => null, { autorun: false, pollTimeout: 0, ...options });
  }

  /** Listen to a queue; `seen` lists [event, what it said], with all events. */
  async events(queue, { connection, ...options } = {}) {
    const name = typeof queue === "string" ? queue : queue.name;
    const events = new QueueEvents(name, { connection: this.connection(connection), ...options });
    events.seen = [];
    for (const event of EVENTS) events.on(event, (said) => events.seen.push([event, said]));
    events.on("error", () => undefined);
    events.named = (event) => events.seen.filter(([name]) => name === event).map(([, said]) => said);
    this.later(() => events.close());
    await events.waitUntilReady();
    return events;
  }

  flows(connection) {
    const flows = new FlowProducer({ connection: this.connection(connection) });
    this.later(() => flows.close());
    return flows;
  }

  /** The all-in-one class. */
  simple(options, name = this.fresh()) {
    const app = new Bunqueue(name, {
      connection: this.connection(),
      pollTimeout: PULL_MS,
      ...options,
    });
    app.on("error", () => undefined);
    this.later(() => app.close(true));
    return app;
  }

  /** A workflow engine that keeps its executions in a file. */
  engine(workflows, options = {}) {
    const engine = new Engine({
      connection: this.connection(),
      queueName: this.fresh(),
      dataPath: join(this.directory(), "workflows.db"),
      ...options,
    });
    for (const workflow of workflows) engine.register(workflow);
    this.later(() => engine.close(true));
    return engine;
  }

  directory() {
    const path = mkdtempSync(join(tmpdir(), "scenario-"));
    this.later(() => rmSync(path, { recursive: true, force: true }));
    return path;
  }

  async close() {
    for (const closer of this.closers.reverse()) await closer();
  }
}

const EVENTS = [
  "waiting", "active", "completed", "failed", "progress", "stalled", "removed", "delayed",
  "duplicated", "retried", "waiting-children", "drained", "paused", "resumed",
];
