/** Scenarios: jobs are looked at and changed. */
import { assert, gate, plain, raises, until } from "./scenario.js";

const broken = async () => { throw new Error("broken"); };

/** One job in every state: {state: id}. */
async function oneOfEach(world, queue) {
  const ids = {};
  const hand = await world.hand(queue);
  for (const state of ["completed", "failed", "active"]) {
    ids[state] = (await queue.add(state, { state }, { attempts: 1 })).id;
    const job = await hand.getNextJob();
    if (state === "completed") await queue.moveJobToCompleted(job.id, { n: 1 }, job.token);
    if (state === "failed") await queue.moveJobToFailed(job.id, new Error("broken"), job.token);
  }
  ids.waiting = (await queue.add("waiting", { state: "waiting" })).id;
  ids.prioritized = (await queue.add("prioritized", { state: "prioritized" }, { priority: 3 })).id;
  ids.delayed = (await queue.add("delayed", { state: "delayed" }, { delay: 60_000 })).id;
  return ids;
}

plain("tells_the_state_of_every_job", async (world) => {
  const queue = world.queue();
  const ids = await oneOfEach(world, queue);

  for (const [state, id] of Object.entries(ids)) {
    assert.equal(await queue.getJobState(id), state);
    assert.equal(await (await queue.getJob(id)).getState(), state);
  }
  assert.equal(await queue.getJobState("nobody"), "unknown");
  assert.equal(await queue.getJob("nobody"), null);
  const done = await queue.getJob(ids.completed);
  assert.deepEqual(
    [await done.isCompleted(), await done.isActive(), await done.isWaiting(), await done.isFailed()],
    [true, false, false, false],
  );
});

plain("counts_jobs_by_state", async (world) => {
  const queue = world.queue();
  await oneOfEach(world, queue);

  const counts = await queue.getJobCountsAsync();

  const states = ["waiting", "prioritized", "delayed", "active", "completed", "failed"];
  assert.deepEqual(states.map((state) => counts[state]), [1, 1, 1, 1, 1, 1]);
  assert.deepEqual(
    [await queue.getWaitingCount(), await queue.getActiveCount(), await queue.getCompletedCount(),
      await queue.getFailedCount(), await queue.getDelayedCount(), await queue.getPrioritizedCount()],
    [1, 1, 1, 1, 1, 1],
  );
  assert.equal(await queue.countAsync(), 3);
});

plain("lists_jobs_by_state", async (world) => {
  const queue = world.queue();
  const ids = await oneOfEach(world, queue);

  const lists = {
    waiting: await queue.getWaitingAsync(),
    prioritized: await queue.getPrioritized(),
    delayed: await queue.getDelayedAsync(),
    active: await queue.getActiveAsync(),
    completed: await queue.getCompletedAsync(),
    failed: await queue.getFailedAsync(),
  };

  for (const [state, jobs] of Object.entries(lists)) {
    assert.deepEqual(jobs.map((job) => [job.id, job.data]), [[ids[state], { state }]], state);
  }
  const some = await queue.getJobsAsync({ state: ["completed", "delayed"] });
  assert.deepEqual(new Set(some.map((job) => job.id)), new Set([ids.completed, ids.delayed]));
});

plain("lists_jobs_page_by_page", async (world) => {
  const queue = world.queue();
  const jobs = await queue.addBulk(
    Array.from({ length: 25 }, (_, n) => ({ name: "page", data: { n } })));
  const ids = jobs.map((job) => job.id);
  const page = async (start, end, asc) =>
    (await queue.getJobsAsync({ state: "waiting", start, end, asc })).map((job) => job.id);

  assert.deepEqual(await page(0, 10, true), ids.slice(0, 10));
  assert.deepEqual(await page(20, 30, true), ids.slice(20));
  assert.deepEqual(await page(0, 5, false), ids.toReversed().slice(0, 5));
  assert.deepEqual(await page(0, -1, true), ids);
});

plain("pages_through_more_than_a_thousand_jobs", async (world) => {
  const queue = world.queue();
  await queue.addBulk(Array.from({ length: 2_300 }, (_, n) => ({ name: "page", data: { n } })));

  const jobs = await queue.getJobsAsync({ state: "waiting", start: 0, end: -1, asc: true });

  assert.deepEqual(jobs.map((job) => job.data.n), Array.from({ length: 2_300 }, (_, n) => n));
});

plain("counts_jobs_by_priority", async (world) => {
  const queue = world.queue();
  for (const priority of [5, 5, 2, 0]) await queue.add("p", {}, { priority });

  assert.deepEqual(await queue.getCountsPerPriorityAsync(), { 0: 1, 2: 1, 5: 2 });
});

plain("shows_how_a_job_ended", async (world) => {
  const queue = world.queue();
  const good = await queue.add("good", {});
  const bad = await queue.add("bad", {}, { attempts: 1 });
  await world.worker(queue, async (job) => {
    if (job.name === "bad") throw new Error("out of paper");
    return { pages: [1, null] };
  });
  await until(async () => (await queue.getJobState(bad.id)) === "failed");

  const [done, failed] = [await queue.getJob(good.id), await queue.getJob(bad.id)];

  assert.deepEqual(done.returnvalue, { pages: [1, null] });
  assert.ok(done.finishedOn >= done.processedOn && done.processedOn >= done.timestamp);
  assert.equal(done.failedReason, undefined);
  assert.equal(failed.failedReason, "out of paper");
  assert.equal(failed.attemptsMade, 1);
  assert.ok(failed.stacktrace.some((line) => line.includes("out of paper")), failed.stacktrace);
});

plain("turns_a_job_into_json", async (world) => {
  const queue = world.queue();
  const { id } = await queue.add("x", { n: 1 }, { priority: 2, attempts: 4 });

  const job = await queue.getJob(id);

  const json = job.toJSON();
  assert.deepEqual([json.id, json.name, json.data, json.progress], [id, "x", { n: 1 }, 0]);
  assert.deepEqual([json.opts.priority, json.opts.attempts], [2, 4]);
  assert.equal(JSON.parse(job.asJSON().data).n, 1);
});

plain("changes_the_data_of_a_job", async (world) => {
  const queue = world.queue();
  const { id } = await queue.add("x", { n: 1 });

  await queue.updateJobData(id, { n: 2, more: true });

  assert.deepEqual((await queue.getJob(id)).data, { n: 2, more: true });
  await raises("Job not found or cannot be updated", () => queue.updateJobData("nobody", {}));
});

plain("changes_the_priority_of_a_job", async (world) => {
  const queue = world.queue();
  const [first, second] = [await queue.add("first", {}), await queue.add("second", {})];

  await queue.changeJobPriority(second.id, { priority: 7 });

  assert.equal((await queue.getJob(second.id)).priority, 7);
  assert.equal(await queue.getJobState(second.id), "prioritized");
  const hand = await world.hand(queue);
  assert.deepEqual([(await hand.getNextJob()).id, (await hand.getNextJob()).id], [second.id, first.id]);
});

plain("changes_the_delay_of_a_job", async (world) => {
  const queue = world.queue();
  const { id } = await queue.add("x", {}, { delay: 60_000 });
  const done = gate();
  await world.worker(queue, async () => done.open(Date.now()));

  await queue.changeJobDelay(id, 200);

  assert.ok(await done.opened);
  await until(async () => (await queue.getJobState(id)) === "completed");
});

plain("promotes_a_delayed_job", async (world) => {
  const queue = world.queue();
  const jobs = [];
  for (let n = 0; n < 4; n++) jobs.push(await queue.add("x", { n }, { delay: 60_000 + n }));

  await queue.promoteJob(jobs[3].id);
  assert.equal(await queue.getJobState(jobs[3].id), "waiting");
  await (await queue.getJob(jobs[2].id)).promote();
  assert.equal(await queue.getJobState(jobs[2].id), "waiting");

  assert.equal(await queue.promoteJobs({ count: 1 }), 1);
  assert.equal(await queue.getDelayedCount(), 1);
  assert.equal(await queue.promoteJobs(), 1);
  assert.equal(await queue.getWaitingCount(), 4);
});

plain("removes_a_job", async (world) => {
  const queue = world.queue();
  const [one, two] = [await queue.add("one", {}), await queue.add("two", {}, { delay: 60_000 })];

  await queue.removeAsync(one.id);
  await (await queue.getJob(two.id)).remove();

  assert.deepEqual([await queue.getJob(one.id), await queue.getJob(two.id)], [null, null]);
  assert.equal(await queue.countAsync(), 0);
});

plain("keeps_the_log_of_a_job", async (world) => {
  const queue = world.queue();
  const { id } = await queue.add("x", {});
  for (const row of ["one", "two", "three"]) assert.equal(await queue.addJobLog(id, row), 1);

  const { logs, count } = await queue.getJobLogs(id);
  assert.deepEqual([logs, count], [["[info] one", "[info] two", "[info] three"], 3]);
  assert.deepEqual((await queue.getJobLogs(id, 1, 2)).logs[0], "[info] two");
  await queue.clearJobLogs(id, 1);
  assert.deepEqual((await queue.getJobLogs(id)).logs, ["[info] three"]);
  await queue.clearJobLogs(id);
  assert.deepEqual((await queue.getJobLogs(id)).logs, []);
  assert.equal(await queue.addJobLog("nobody", "x"), 0);
});

plain("waits_until_a_job_is_finished", async (world) => {
  const queue = world.queue();
  const events = await world.events(queue);
  const [good, bad] = [await queue.add("good", {}), await queue.add("bad", {}, { attempts: 1 })];
  const waiting = good.waitUntilFinished(events, 10_000);
  const failing = raises("ran dry", () => queue.waitJobUntilFinished(bad.id, events, 10_000));

  await world.worker(queue, async (job) => {
    if (job.name === "bad") throw new Error("ran dry");
    return "a result";
  });

  assert.equal(await waiting, "a result");
  await failing;
  assert.equal(await (await queue.getJob(good.id)).waitUntilFinished(events, 5_000), "a result");
  await raises("Job already failed", () => queue.waitJobUntilFinished(bad.id, events, 5_000));
  const begin = Date.now();
  await raises("waitUntilFinished timed out after 3000ms", () => bad.waitUntilFinished(events, 3_000));
  assert.equal(Date.now() - begin >= 2_900, world.reference);
});

plain("gives_up_waiting_in_time", async (world) => {
  const queue = world.queue();
  const job = await queue.add("never", {});
  const begin = Date.now();

  await raises("waitUntilFinished timed out after 300ms", async () => job.waitUntilFinished(await world.events(queue), 300));

  assert.ok(Date.now() - begin < 5_000);
});

plain("completes_and_fails_jobs_by_hand", async (world) => {
  const queue = world.queue();
  const hand = await world.hand(queue);
  const [good, bad] = [await queue.add("good", {}), await queue.add("bad", {}, { attempts: 1 })];
  const [first, second] = [await hand.getNextJob(), await hand.getNextJob()];
  assert.deepEqual([first.id, second.id], [good.id, bad.id]);

  await raises(`Invalid or expired lock token for job ${good.id}`, () =>
    queue.moveJobToCompleted(good.id, 1, "forged"));
  await queue.moveJobToCompleted(good.id, { n: 1 }, first.token);
  await queue.moveJobToFailed(bad.id, new Error("by hand"), second.token);

  assert.deepEqual((await queue.getJob(good.id)).returnvalue, { n: 1 });
  assert.equal((await queue.getJob(bad.id)).failedReason, "by hand");
  await raises(/not found or not in processing/, () => queue.moveJobToCompleted(good.id, 2, first.token));
});

plain("moves_an_active_job_back_without_a_charge", async (world) => {
  const queue = world.queue();
  const hand = await world.hand(queue);
  const { id } = await queue.add("x", {});

  const first = await hand.getNextJob();
  await raises(`Invalid or expired lock token for job ${id}`, () => queue.moveJobToWait(id, "forged"));
  assert.equal(await queue.moveJobToWait(id, first.token), true);
  assert.equal(await queue.getJobState(id), "waiting");
  const second = await hand.getNextJob();
  await queue.moveJobToDelayed(id, Date.now() + 60_000, second.token);
  assert.equal(await queue.getJobState(id), "delayed");

  assert.equal((await queue.getJob(id)).attemptsMade, 0);
});

plain("extends_the_lock_of_a_job", async (world) => {
  const queue = world.queue();
  const hand = await world.hand(queue, { lockDuration: 10_000 });
  await queue.add("x", {});
  await queue.add("y", {});
  const [one, two] = [await hand.getNextJob(), await hand.getNextJob()];

  assert.equal(await queue.extendJobLock(one.id, one.token, 45_000), 45_000);
  assert.equal(await queue.extendJobLock(one.id, "forged", 45_000), 0);
  assert.equal(await hand.extendJobLocks([one.id, two.id], [one.token, two.token], 20_000), 2);
});

plain("counts_what_was_done_by_the_minute", async (world) => {
  const queue = world.queue();
  for (let n = 0; n < 3; n++) await queue.add("good", {});
  await queue.add("bad", {}, { attempts: 1 });
  await world.worker(queue, async (job) => job.name === "bad" && broken());
  await until(async () => (await queue.getFailedCount()) === 1);

  const [completed, failed] = [await queue.getMetrics("completed"), await queue.getMetrics("failed")];

  assert.equal(completed.meta.count, 3);
  assert.equal(failed.meta.count, 1);
  assert.equal(completed.data.reduce((sum, n) => sum + n, 0), 3);
});

plain("lists_the_workers_of_a_queue", async (world) => {
  const queue = world.queue();
  const worker = await world.worker(queue, async () => null, { concurrency: 3 });

  const [row] = await until(async () => {
    const rows = await queue.getWorkers();
    return rows.length === 1 && rows;
  });
  assert.deepEqual([row.queues, row.concurrency, row.pid], [[queue.name], 3, process.pid]);
  assert.equal(await queue.getWorkersCount(), 1);

  await worker.close();
  assert.equal(await queue.getWorkersCount(), 0);
});

plain("reports_progress_from_outside", async (world) => {
  const queue = world.queue();
  const events = await world.events(queue);
  const { id } = await queue.add("x", {});
  const hand = await world.hand(queue);
  await hand.getNextJob();

  await queue.updateJobProgress(id, 35);
  assert.equal((await queue.getJob(id)).progress, 35);
  await queue.updateJobProgress(id, { stage: "packing" });

  await until(() => events.named("progress").length === 2);
  assert.equal(events.named("progress")[0].data, 35);
});

plain("lets_a_job_change_itself", async (world) => {
  const queue = world.queue();
  const { id } = await queue.add("x", { n: 1 }, { delay: 60_000 });
  const job = await queue.getJob(id);

  await job.updateData({ n: 2 });
  await job.changePriority({ priority: 6 });
  await job.log("changed");
  await job.changeDelay(0);

  const read = await queue.getJob(id);
  assert.deepEqual([read.data, read.priority, await read.getState()], [{ n: 2 }, 6, "prioritized"]);
  assert.deepEqual((await queue.getJobLogs(id)).logs, ["[info] changed"]);
  await job.clearLogs();
  assert.equal((await queue.getJobLogs(id)).count, 0);
});

plain("lets_a_job_end_itself_by_its_token", async (world) => {
  const queue = world.queue();
  const hand = await world.hand(queue);
  const ids = [];
  for (const name of ["a", "b", "c"]) ids.push((await queue.add(name, {}, { attempts: 1 })).id);
  const tokens = [];
  for (const _ of ids) tokens.push((await hand.getNextJob()).token);
  const jobs = await Promise.all(ids.map((id) => queue.getJob(id)));

  assert.equal(await jobs[0].extendLock(tokens[0], 20_000), 20_000);
  await jobs[0].moveToCompleted({ by: "itself" }, tokens[0]);
  await jobs[1].moveToFailed(new Error("by itself"), tokens[1]);
  await jobs[2].moveToWait(tokens[2]);

  assert.deepEqual(await Promise.all(jobs.map((job) => job.getState())), ["completed", "failed", "waiting"]);
  await jobs[1].retry();
  assert.equal(await jobs[1].getState(), "waiting");
});

plain("trims_the_events_of_a_queue", async (world) => {
  const queue = world.queue();
  for (let n = 0; n < 5; n++) await queue.add("x", {});

  assert.equal(await queue.trimEvents(2), 3);
  assert.equal(await queue.trimEvents(2), 0);
});
