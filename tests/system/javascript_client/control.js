/** Scenarios: queues are paused, emptied, limited; dead letters. */
import { QueueGroup } from "bunqueue/client";
import { assert, crowd, gate, plain, raises, sleep, until } from "./scenario.js";

const broken = async () => { throw new Error("broken"); };

/** Let some jobs die and return their ids. */
async function dead(world, queue, count, reason = "broken") {
  const ids = [];
  for (let n = 0; n < count; n++) ids.push((await queue.add("x", { n }, { attempts: 1 })).id);
  const worker = await world.worker(queue, async () => { throw new Error(reason); });
  await until(async () => (await queue.getFailedCount()) >= count);
  await worker.close();
  return ids;
}

plain("pauses_and_resumes_a_queue", async (world) => {
  const queue = world.queue();
  await queue.pauseAsync();
  assert.equal(await queue.isPausedAsync(), true);
  const job = await queue.add("x", {});
  let runs = 0;
  await world.worker(queue, async () => ++runs);
  await sleep(300);
  assert.equal(runs, 0);

  await queue.resumeAsync();

  await until(async () => (await queue.getJobState(job.id)) === "completed");
  assert.equal(await queue.isPausedAsync(), false);
});

plain("counts_jobs_of_a_paused_queue_as_paused", async (world) => {
  const queue = world.queue();
  await queue.add("x", {});
  await queue.pauseAsync();

  const counts = await queue.getJobCountsAsync();

  assert.deepEqual([counts.waiting, counts.paused], [0, 1]);
});

plain("drains_what_waits", async (world) => {
  const queue = world.queue();
  const hand = await world.hand(queue);
  const running = await queue.add("running", {});
  const job = await hand.getNextJob();
  await queue.addBulk([{ name: "a", data: {} }, { name: "b", data: {}, opts: { priority: 1 } }]);

  assert.equal(await queue.drainAsync(), 2);

  assert.equal(await queue.countAsync(), 0);
  await queue.moveJobToCompleted(running.id, "kept", job.token);
  assert.equal(await queue.getJobState(running.id), "completed");
});

plain("obliterates_a_queue", async (world) => {
  const queue = world.queue();
  await dead(world, queue, 1);
  await queue.add("waiting", {});
  await queue.add("delayed", {}, { delay: 60_000 });

  await queue.obliterateAsync();

  const counts = Object.values(await queue.getJobCountsAsync());
  assert.ok(counts.every((count) => count === 0), counts);
});

plain("cleans_old_jobs_by_state", async (world) => {
  const queue = world.queue();
  const worker = await world.worker(queue, async () => null);
  const ids = [];
  for (let n = 0; n < 3; n++) ids.push((await queue.add("x", {})).id);
  await until(async () => (await queue.getCompletedCount()) === 3);
  await worker.close();
  const waiting = await queue.add("waiting", {});

  assert.deepEqual(await queue.cleanAsync(60_000, 10, "completed"), []);
  await sleep(5);
  assert.equal((await queue.cleanAsync(0, 2, "completed")).length, 2);
  assert.equal((await queue.cleanAsync(0, 10, "completed")).length, 1);

  assert.equal(await queue.getCompletedCount(), 0);
  assert.equal(await queue.getJobState(waiting.id), "waiting");
});

plain("retries_a_failed_job", async (world) => {
  const queue = world.queue();
  const [id] = await dead(world, queue, 1);

  await queue.retryJob(id);

  const job = await queue.getJob(id);
  assert.deepEqual([await job.getState(), job.attemptsMade], ["waiting", 0]);
  await raises("Cannot move job from state 'unknown' to waiting", () => queue.retryJob("nobody"));
});

plain("retries_failed_jobs_together", async (world) => {
  const queue = world.queue();
  await dead(world, queue, 3);

  await queue.retryJobs({ state: "failed", count: 2 });
  assert.deepEqual([await queue.getWaitingCount(), await queue.getFailedCount()], [2, 1]);
  await queue.retryJobs();

  assert.deepEqual([await queue.getWaitingCount(), await queue.getFailedCount()], [3, 0]);
});

plain("retries_completed_jobs", async (world) => {
  const queue = world.queue();
  const worker = await world.worker(queue, async () => "first");
  const ids = [];
  for (let n = 0; n < 3; n++) ids.push((await queue.add("x", {})).id);
  await until(async () => (await queue.getCompletedCount()) === 3);
  await worker.close();

  assert.equal(await queue.retryCompletedAsync(ids[0]), 1);
  assert.equal(await queue.getJobState(ids[0]), "waiting");
  assert.equal((await queue.getJob(ids[0])).returnvalue, undefined);
  await queue.retryJobs({ state: "completed" });

  assert.equal(await queue.getWaitingCount(), 3);
});

plain("limits_the_concurrency_of_a_queue", async (world) => {
  const queue = world.queue();
  await queue.setGlobalConcurrencyAsync(2);
  assert.equal(await queue.getGlobalConcurrency(), 2);
  const all = crowd();
  await queue.addBulk(Array.from({ length: 8 }, () => ({ name: "x", data: {} })));

  await world.worker(queue, all.handler, { concurrency: 8 });

  await until(() => all.running === 2);
  await sleep(200);
  all.letGo();
  await until(async () => (await queue.getCompletedCount()) === 8);
  assert.equal(all.most, 2);
  await queue.removeGlobalConcurrencyAsync();
  assert.equal(await queue.getGlobalConcurrency(), null);
});

plain("tells_that_a_queue_is_maxed", async (world) => {
  const queue = world.queue();
  const hand = await world.hand(queue);
  await queue.setGlobalConcurrencyAsync(1);
  assert.equal(await queue.isMaxed(), false);
  await queue.add("x", {});
  await queue.add("y", {});

  const job = await hand.getNextJob();

  assert.equal(await queue.isMaxed(), true);
  assert.equal(await hand.getNextJob(), undefined);
  await queue.moveJobToCompleted(job.id, null, job.token);
  assert.equal(await queue.isMaxed(), false);
  assert.ok(await hand.getNextJob());
});

plain("limits_the_rate_of_a_queue", async (world) => {
  const queue = world.queue();
  await queue.setGlobalRateLimitAsync(2, 700);
  assert.deepEqual(await queue.getGlobalRateLimit(), { max: 2, duration: 700 });
  await queue.addBulk(Array.from({ length: 5 }, () => ({ name: "x", data: {} })));
  const starts = [];

  await world.worker(queue, async () => starts.push(Date.now()), { concurrency: 5 });

  await until(() => starts.length === 5);
  assert.ok(starts[4] - starts[0] >= 650, `${starts[4] - starts[0]} ms`);
  await queue.removeGlobalRateLimitAsync();
  assert.equal(await queue.getGlobalRateLimit(), null);
});

plain("limits_the_rate_for_a_while", async (world) => {
  const queue = world.queue();
  assert.equal(await queue.getRateLimitTtl(), -2);

  await queue.rateLimit(2_000);

  const ttl = await queue.getRateLimitTtl();
  assert.ok((await queue.getGlobalRateLimit())?.max === 1);
  assert.ok(ttl <= 2_000, ttl);
  await until(async () => (await queue.getGlobalRateLimit()) === null);
});

plain("keeps_dead_letters_with_their_story", async (world) => {
  const queue = world.queue();
  const job = await queue.add("x", { n: 1 }, { attempts: 2, backoff: 10 });
  await world.worker(queue, broken);
  await until(async () => (await queue.getJobState(job.id)) === "failed");

  const [entry] = await queue.getDlqAsync();

  assert.equal(entry.job.id, job.id);
  assert.deepEqual([entry.reason, entry.error], ["max_attempts_exceeded", "broken"]);
  assert.equal(entry.attempts.length, 2);
  assert.deepEqual(entry.attempts.map((attempt) => attempt.attempt), [1, 2]);
  assert.ok(entry.enteredAt >= job.timestamp);
  assert.deepEqual((await queue.getDlqJobsAsync()).map((dlqJob) => dlqJob.data), [{ n: 1 }]);
});

plain("counts_dead_letters_by_reason", async (world) => {
  const queue = world.queue();
  await dead(world, queue, 2);

  const stats = await queue.getDlqStatsAsync();

  assert.equal(stats.total, 2);
  assert.equal(stats.byReason.max_attempts_exceeded, 2);
  assert.ok(stats.oldestEntry <= stats.newestEntry);
});

plain("filters_dead_letters", async (world) => {
  const queue = world.queue();
  await dead(world, queue, 3);

  assert.equal((await queue.getDlqAsync({ reason: "max_attempts_exceeded" })).length, 3);
  assert.equal((await queue.getDlqAsync({ reason: "timeout" })).length, 0);
  assert.equal((await queue.getDlqAsync({ limit: 2 })).length, 2);
  assert.equal((await queue.getDlqAsync({ limit: 2, offset: 2 })).length, 1);
  assert.equal((await queue.getDlqAsync({ newerThan: Date.now() + 60_000 })).length, 0);
});

plain("brings_dead_letters_back", async (world) => {
  const queue = world.queue();
  const ids = await dead(world, queue, 3);

  assert.equal(await queue.retryDlqAsync(ids[1]), 1);
  assert.equal(await queue.getJobState(ids[1]), "waiting");
  assert.equal(await queue.retryDlqAsync("nobody"), 0);
  assert.equal(await queue.retryDlqByFilterAsync({ reason: "max_attempts_exceeded", limit: 1 }), 1);
  assert.equal(await queue.retryDlqAsync(), 1);

  assert.deepEqual(await queue.getDlqAsync(), []);
  const done = [];
  await world.worker(queue, async (job) => done.push(job.id));
  await until(() => done.length === 3);
  assert.deepEqual(new Set(done), new Set(ids));
});

plain("throws_dead_letters_away", async (world) => {
  const queue = world.queue();
  const ids = await dead(world, queue, 3);

  assert.equal(await queue.removeDlqJob(ids[0]), true);
  assert.equal(await queue.removeDlqJob(ids[0]), false);
  assert.equal(await queue.getJobState(ids[0]), "unknown");
  assert.equal(await queue.purgeDlqAsync(), 2);

  assert.deepEqual(await queue.getDlqAsync(), []);
  assert.equal(await queue.getJob(ids[2]), null);
});

plain("keeps_no_more_dead_letters_than_configured", async (world) => {
  const queue = world.queue();
  await queue.setDlqConfigAsync({ maxEntries: 2, autoRetry: false });
  const config = await queue.getDlqConfigAsync();
  assert.deepEqual([config.maxEntries, config.autoRetry], [2, false]);
  const ids = [];
  for (let n = 0; n < 4; n++) ids.push((await queue.add("x", {}, { attempts: 1 })).id);
  await world.worker(queue, broken);

  await until(async () => (await queue.getJobState(ids[3])) === "failed");

  assert.deepEqual((await queue.getDlqAsync()).map((entry) => entry.job.id).sort(), ids.slice(2).sort());
});

plain("configures_the_check_for_stalls", async (world) => {
  const queue = world.queue();

  await queue.setStallConfigAsync({ enabled: true, stallInterval: 45_000, maxStalls: 5, gracePeriod: 1_000 });

  const { enabled, stallInterval, maxStalls, gracePeriod } = await queue.getStallConfigAsync();
  assert.deepEqual([enabled, stallInterval, maxStalls, gracePeriod], [true, 45_000, 5, 1_000]);
});

plain("controls_a_namespace_of_queues_together", async (world) => {
  const group = new QueueGroup(world.name);
  const options = { connection: world.connection() };
  const queues = ["a", "b"].map((name) => group.getQueue(name, options));
  for (const queue of queues) {
    world.later(() => queue.close());
    await queue.add("x", {});
  }
  const other = world.queue();
  await other.add("x", {});

  assert.deepEqual(await group.listQueuesAsync(), ["a", "b"]);
  await group.pauseAllAsync();
  assert.deepEqual([await queues[0].isPausedAsync(), await other.isPausedAsync()], [true, false]);
  await group.resumeAllAsync();
  assert.equal(await queues[1].isPausedAsync(), false);
  assert.equal(await group.drainAllAsync(), 2);
  await group.obliterateAllAsync();

  assert.equal(await other.countAsync(), 1);
});

plain("notices_a_resume_at_once", async (world) => {
  const queue = world.queue();
  await queue.pauseAsync();
  await queue.add("x", {});
  const begun = gate();
  await world.worker(queue, async () => begun.open(Date.now()), { pollTimeout: 10_000 });
  await sleep(200);
  const begin = Date.now();

  await queue.resumeAsync();

  assert.ok((await begun.opened) - begin < 3_000);
});

plain("controls_a_queue_without_waiting_for_answers", async (world) => {
  const queue = world.queue();
  await queue.add("x", {});

  queue.setGlobalConcurrency(4);
  queue.setGlobalRateLimit(50, 2_000);
  queue.setDlqConfig({ maxEntries: 3 });
  queue.setStallConfig({ stallInterval: 50_000 });
  queue.pause();

  await until(() => queue.isPausedAsync());
  await until(async () => (await queue.getGlobalConcurrency()) === 4);
  await until(async () => (await queue.getGlobalRateLimit())?.max === 50);
  await until(async () => (await queue.getDlqConfigAsync()).maxEntries === 3);
  await until(async () => (await queue.getStallConfigAsync()).stallInterval === 50_000);
  queue.resume();
  queue.removeGlobalConcurrency();
  queue.removeGlobalRateLimit();
  queue.drain();
  await until(async () => (await queue.countAsync()) === 0);
  assert.equal(await until(async () => !(await queue.isPausedAsync())), true);
  await until(async () => (await queue.getGlobalConcurrency()) === null);
});

plain("brings_dead_letters_back_without_waiting_for_answers", async (world) => {
  const queue = world.queue();
  const ids = await dead(world, queue, 2);

  queue.retryDlq(ids[0]);
  await until(async () => (await queue.getJobState(ids[0])) === "waiting");
  queue.purgeDlq();
  await until(async () => (await queue.getJobState(ids[1])) === "unknown");
  queue.obliterate();

  await until(async () => (await queue.countAsync()) === 0);
});
