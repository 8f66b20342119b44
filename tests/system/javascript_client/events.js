/** Scenarios: somebody listens to a queue. */
import { assert, plain, until } from "./scenario.js";

plain("hears_the_life_of_a_job_in_order", async (world) => {
  const queue = world.queue();
  const events = await world.events(queue);
  const { id } = await queue.add("x", {});

  await world.worker(queue, async (job) => {
    await job.updateProgress(60);
    return { ok: 1 };
  });

  await until(() => events.named("completed").length === 1);
  assert.deepEqual(events.seen.filter(([event]) => event !== "drained"), [
    ["waiting", { jobId: id }],
    ["active", { jobId: id }],
    ["progress", { jobId: id, data: 60 }],
    ["completed", { jobId: id, returnvalue: { ok: 1 } }],
  ]);
});

plain("hears_failures_and_retries", async (world) => {
  const queue = world.queue();
  const events = await world.events(queue);
  const { id } = await queue.add("x", {}, { attempts: 2, backoff: 10 });

  await world.worker(queue, async () => { throw new Error("no ink"); });

  await until(() => events.named("failed").length === 2);
  assert.deepEqual(events.named("failed").map((said) => [said.jobId, said.failedReason]), [
    [id, "no ink"], [id, "no ink"],
  ]);
  assert.deepEqual(events.named("retried"), [{ jobId: id, prev: "failed" }]);
});

plain("hears_nothing_where_there_is_no_result", async (world) => {
  const queue = world.queue();
  const events = await world.events(queue);
  const [quiet, nil] = [await queue.add("quiet", {}), await queue.add("nil", {})];

  await world.worker(queue, async (job) => (job.name === "nil" ? null : undefined));

  await until(() => events.named("completed").length === 2);
  const results = Object.fromEntries(events.named("completed").map((said) => [said.jobId, said.returnvalue]));
  assert.deepEqual(results, { [quiet.id]: undefined, [nil.id]: null });
});

plain("hears_removals_and_duplicates", async (world) => {
  const queue = world.queue();
  const events = await world.events(queue);
  const deduplication = { id: "key" };
  const { id } = await queue.add("x", {}, { deduplication });
  await queue.add("x", {}, { deduplication });
  await until(() => events.named("duplicated").length === 1);

  await queue.removeAsync(id);

  await until(() => events.named("removed").length === 1);
  assert.deepEqual(events.named("removed"), [{ jobId: id, prev: "waiting" }]);
  assert.deepEqual(events.named("duplicated"), [{ jobId: id }]);
});

plain("hears_that_a_job_is_delayed_by_its_worker", async (world) => {
  const queue = world.queue();
  const events = await world.events(queue);
  const { id } = await queue.add("x", {});
  const hand = await world.hand(queue);
  const { token } = await hand.getNextJob();

  await queue.moveJobToDelayed(id, Date.now() + 60_000, token);

  const [said] = await until(() => events.named("delayed").length === 1 && events.named("delayed"));
  assert.equal(said.jobId, id);
  assert.ok(said.delay > 55_000 && said.delay <= 60_000, said.delay);
});

plain("hears_pause_and_resume", async (world) => {
  const queue = world.queue();
  const events = await world.events(queue);

  await queue.pauseAsync();
  await queue.resumeAsync();

  await until(() => events.named("resumed").length === 1);
  assert.deepEqual(events.seen.map(([event]) => event), ["paused", "resumed"]);
});

plain("hears_that_a_queue_was_drained", async (world) => {
  const queue = world.queue();
  await queue.add("x", {});
  const events = await world.events(queue);

  await queue.drainAsync();
  await queue.add("y", {});

  await until(() => events.named("waiting").length === 1);
  assert.equal(events.named("drained").length, world.reference ? 0 : 1);
});

plain("hears_only_its_own_queue", async (world) => {
  const [mine, other] = [world.queue(), world.queue()];
  const events = await world.events(mine);

  await other.add("x", {});
  const { id } = await mine.add("x", {});

  await until(() => events.named("waiting").length > 0);
  assert.deepEqual(events.named("waiting"), [{ jobId: id }]);
});

plain("hears_nothing_any_more_after_closing", async (world) => {
  const queue = world.queue();
  const [closed, open] = [await world.events(queue), await world.events(queue)];
  closed.close();

  await queue.add("x", {});

  await until(() => open.named("waiting").length === 1);
  assert.deepEqual(closed.seen, []);
});

plain("hears_an_event_once", async (world) => {
  const queue = world.queue();
  const events = await world.events(queue);
  let heard = 0;
  events.once("waiting", () => heard++);

  await queue.addBulk([{ name: "a", data: {} }, { name: "b", data: {} }]);

  await until(() => events.named("waiting").length === 2);
  assert.equal(heard, 1);
});

plain("hears_every_job_of_a_batch", async (world) => {
  const queue = world.queue();
  const events = await world.events(queue);
  const jobs = await queue.addBulk(Array.from({ length: 120 }, (_, n) => ({ name: "x", data: { n } })));

  await world.worker(queue, async (job) => job.data.n, { concurrency: 20, batchSize: 40 });

  await until(() => events.named("completed").length === 120);
  const results = Object.fromEntries(events.named("completed").map((said) => [said.jobId, said.returnvalue]));
  assert.deepEqual(results, Object.fromEntries(jobs.map((job, n) => [job.id, n])));
});
