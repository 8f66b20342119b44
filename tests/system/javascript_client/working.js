/** Scenarios: jobs are worked on. */
import { DelayedError, SandboxedWorker, TcpConnectionPool, UnrecoverableError } from "bunqueue/client";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { assert, crowd, gate, plain, sleep, until } from "./scenario.js";

const many = (count) => Array.from({ length: count }, (_, n) => ({ name: "n", data: { n } }));
const broken = async () => { throw new Error("broken"); };

plain("works_a_job_and_keeps_its_result", async (world) => {
  const queue = world.queue();
  const { id } = await queue.add("double", { n: 21 });

  await world.worker(queue, async (job) => ({ value: job.data.n * 2 }));

  await until(async () => (await queue.getJobState(id)) === "completed");
  assert.deepEqual((await queue.getJob(id)).returnvalue, { value: 42 });
});

plain("tells_no_result_from_a_result_of_null", async (world) => {
  const queue = world.queue();
  const [quiet, nil] = [await queue.add("quiet", {}), await queue.add("nil", {})];

  await world.worker(queue, async (job) => (job.name === "nil" ? null : undefined));

  await until(async () => (await queue.getCompletedCount()) === 2);
  assert.equal((await queue.getJob(quiet.id)).returnvalue, undefined);
  assert.equal((await queue.getJob(nil.id)).returnvalue, null);
});

plain("works_many_jobs_each_once", async (world) => {
  const queue = world.queue();
  await queue.addBulk(many(200));
  const seen = [];

  for (let worker = 0; worker < 2; worker++) {
    await world.worker(queue, async (job) => seen.push(job.data.n), { concurrency: 10, batchSize: 20 });
  }

  await until(async () => (await queue.getCompletedCount()) === 200);
  assert.deepEqual(seen.sort((a, b) => a - b), many(200).map((job) => job.data.n));
});

plain("works_as_many_at_a_time_as_allowed", async (world) => {
  const queue = world.queue();
  await queue.addBulk(many(12));
  const all = crowd();

  const worker = await world.worker(queue, all.handler, { concurrency: 3 });

  await until(() => all.running === 3);
  await sleep(200);
  all.letGo();
  await until(async () => (await queue.getCompletedCount()) === 12);
  assert.equal(all.most, 3);
  assert.equal(worker.concurrency, 3);
});

plain("tells_what_a_worker_does", async (world) => {
  const queue = world.queue();
  const told = [];
  const worker = await world.worker(queue, async (job) => {
    await job.updateProgress(40, "on the way");
    await job.log("half way");
    if (job.name === "bad") throw new Error("broken");
    return job.name;
  }, { autorun: false });
  worker.on("ready", () => told.push(["ready"]));
  worker.on("active", (job) => told.push(["active", job.name]));
  worker.on("progress", (job, progress) => told.push(["progress", job.name, progress]));
  worker.on("completed", (job, result) => told.push(["completed", job.name, result]));
  worker.on("failed", (job, error) => told.push(["failed", job.name, error.message]));
  worker.on("drained", () => told.push(["drained"]));
  await queue.add("good", {});
  await queue.add("bad", {}, { attempts: 1 });

  worker.run();

  await until(() => told.some(([event]) => event === "drained"));
  assert.deepEqual(told.filter(([event]) => event !== "drained"), [
    ["ready"],
    ["active", "good"], ["progress", "good", 40], ["completed", "good", "good"],
    ["active", "bad"], ["progress", "bad", 40], ["failed", "bad", "broken"],
  ]);
});

plain("reports_progress_and_logs_of_a_running_job", async (world) => {
  const queue = world.queue();
  const [halfway, finish] = [gate(), gate()];
  const { id } = await queue.add("x", {});
  await world.worker(queue, async (job) => {
    await job.updateProgress(30);
    await job.log("began");
    halfway.open();
    await finish.opened;
  });
  await halfway.opened;

  const job = await queue.getJob(id);

  assert.equal(job.progress, 30);
  assert.equal(await job.isActive(), true);
  assert.deepEqual((await queue.getJobLogs(id)).logs, ["[info] began"]);
  finish.open();
});

plain("tries_again_after_a_backoff", async (world) => {
  const queue = world.queue();
  const starts = [];
  const { id } = await queue.add("flaky", {}, { attempts: 3, backoff: { type: "fixed", delay: 200 } });

  await world.worker(queue, async (job) => {
    starts.push(Date.now());
    if (starts.length < 3) throw new Error(`try ${job.attemptsMade}`);
    return "third time lucky";
  });

  await until(async () => (await queue.getJobState(id)) === "completed");
  assert.equal(starts.length, 3);
  for (const index of [1, 2]) {
    assert.ok(starts[index] - starts[index - 1] >= 155, `${starts[index] - starts[index - 1]} ms`);
  }
  const job = await queue.getJob(id);
  assert.deepEqual([job.attemptsMade, job.returnvalue], [2, "third time lucky"]);
});

plain("waits_twice_as_long_each_time_if_asked", async (world) => {
  const queue = world.queue();
  const starts = [];
  await queue.add("x", {}, { attempts: 3, backoff: { type: "exponential", delay: 150 } });

  await world.worker(queue, async () => {
    starts.push(Date.now());
    throw new Error("no");
  });

  await until(async () => (await queue.getFailedCount()) === 1);
  assert.ok(starts[1] - starts[0] >= 70, `${starts[1] - starts[0]} ms`);
  assert.ok(starts[2] - starts[1] >= 145, `${starts[2] - starts[1]} ms`);
});

plain("gives_up_at_once_on_an_unrecoverable_error", async (world) => {
  const queue = world.queue();
  let runs = 0;
  const { id } = await queue.add("x", {}, { attempts: 5 });

  await world.worker(queue, async () => {
    runs++;
    throw new UnrecoverableError("hopeless");
  });

  await until(async () => (await queue.getJobState(id)) === "failed");
  assert.equal(runs, 1);
  assert.equal((await queue.getJob(id)).failedReason, "hopeless");
});

plain("delays_a_job_that_asks_for_it", async (world) => {
  const queue = world.queue();
  const { id } = await queue.add("x", {}, { attempts: 1, backoff: 60_000 });

  await world.worker(queue, async () => { throw new DelayedError("not yet"); });

  await until(async () => (await queue.getJobState(id)) === "delayed");
  assert.equal((await queue.getJob(id)).attemptsMade, 0);
});

plain("lets_a_handler_move_its_own_job", async (world) => {
  const queue = world.queue();
  const runs = {};
  const names = ["completed", "failed", "delayed"];
  const ids = {};
  for (const name of names) ids[name] = (await queue.add(name, {}, { attempts: 1 })).id;

  await world.worker(queue, async (job) => {
    runs[job.name] = (runs[job.name] ?? 0) + 1;
    if (job.name === "completed") await job.moveToCompleted({ by: "hand" }, job.token);
    if (job.name === "failed") await job.moveToFailed(new Error("by hand"), job.token);
    if (job.name === "delayed") await job.moveToDelayed(Date.now() + 60_000, job.token);
  });

  for (const name of names) await until(async () => (await queue.getJobState(ids[name])) === name);
  assert.deepEqual((await queue.getJob(ids.completed)).returnvalue, { by: "hand" });
  assert.equal((await queue.getJob(ids.failed)).failedReason, "by hand");
  assert.deepEqual(runs, { completed: 1, failed: 1, delayed: 1 });
});

plain("lets_a_handler_discard_its_job", async (world) => {
  const queue = world.queue();
  let runs = 0;
  const { id } = await queue.add("x", {}, { attempts: 5 });

  await world.worker(queue, async (job) => {
    runs++;
    job.discard();
  });

  await until(async () => (await queue.getJobState(id)) === "failed");
  assert.equal(runs, 1);
});

plain("lets_a_handler_change_its_data", async (world) => {
  const queue = world.queue();
  const { id } = await queue.add("x", { step: 1 }, { attempts: 2, backoff: 10 });

  await world.worker(queue, async (job) => {
    if (job.data.step === 2) return "resumed";
    await job.updateData({ step: 2 });
    throw new Error("again");
  });

  await until(async () => (await queue.getJobState(id)) === "completed");
  assert.equal((await queue.getJob(id)).returnvalue, "resumed");
});

plain("ends_a_job_that_runs_too_long", async (world) => {
  const queue = world.queue();
  const { id } = await queue.add("slow", {}, { timeout: 200, attempts: 1 });

  await world.worker(queue, (_job, { signal }) =>
    new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason))));

  await until(async () => (await queue.getJobState(id)) === "failed");
  const [entry] = await queue.getDlqAsync();
  assert.equal(entry.reason, "timeout");
});

plain("cancels_a_running_job", async (world) => {
  const queue = world.queue();
  const begun = gate();
  const cancelled = [];
  const { id } = await queue.add("x", {}, { attempts: 1 });
  const worker = await world.worker(queue, async (_job, { signal }) => {
    begun.open();
    await new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
  });
  worker.on("cancelled", (said) => cancelled.push(said));
  await begun.opened;

  assert.equal(worker.cancelJob(id, "changed my mind"), true);
  assert.equal(worker.cancelJob("nobody"), false);

  await until(async () => (await queue.getJobState(id)) === "failed");
  assert.deepEqual(cancelled, [{ jobId: id, reason: "changed my mind" }]);
});

plain("keeps_the_lock_of_a_slow_job_with_heartbeats", async (world) => {
  const queue = world.queue();
  let runs = 0;
  const { id } = await queue.add("slow", {});

  const worker = await world.worker(queue, async () => {
    runs++;
    await sleep(9_000); // a lost lock is noticed by 2.9.5 within 5 s
    return "in the end";
  }, { lockDuration: 3_000, heartbeatInterval: 300 });
  await world.worker(queue, async () => ++runs);

  await until(async () => (await queue.getJobState(id)) === "completed");
  assert.equal(runs, 1);
  assert.equal((await queue.getJob(id)).returnvalue, "in the end");
  assert.deepEqual(worker.errors, []);
});

plain("gives_the_job_of_a_silent_worker_to_another", async (world) => {
  const queue = world.queue();
  const events = await world.events(queue);
  const { id } = await queue.add("x", {}, { attempts: 3 });
  const silent = await world.hand(queue, { lockDuration: 300 });
  const lost = await silent.getNextJob();
  assert.equal(lost.id, id);

  await world.worker(queue, async () => "by another");

  await until(async () => (await queue.getJobState(id)) === "completed");
  assert.equal((await queue.getJob(id)).returnvalue, "by another");
  assert.deepEqual(events.named("stalled"), [{ jobId: id }]);
});

plain("ends_when_its_jobs_are_done", async (world) => {
  const queue = world.queue();
  const [begun, finish] = [gate(), gate()];
  const running = await queue.add("running", {});
  await queue.addBulk(many(5));
  const worker = await world.worker(queue, async (job) => {
    if (job.name === "running") {
      begun.open();
      await finish.opened;
    }
    return "done";
  }, { batchSize: 6 });
  await begun.opened;

  const closing = worker.close();
  await sleep(100);
  assert.equal(await queue.getJobState(running.id), "active");
  finish.open();
  await closing;

  assert.equal(await queue.getJobState(running.id), "completed");
  assert.equal(await queue.getWaitingCount(), 5);
  assert.equal(worker.isClosed(), true);
});

plain("pauses_a_worker", async (world) => {
  const queue = world.queue();
  const worker = await world.worker(queue, async () => "done");
  worker.pause();
  assert.deepEqual([worker.isRunning(), worker.isPaused()], [false, true]);
  await sleep(600); // what it asked for before was answered meanwhile
  const { id } = await queue.add("x", {});
  await sleep(300);
  assert.equal(await queue.getJobState(id), "waiting");

  worker.resume();

  await until(async () => (await queue.getJobState(id)) === "completed");
});

plain("starts_at_once_what_comes_while_it_waits", async (world) => {
  const queue = world.queue();
  const begun = gate();
  await world.worker(queue, async () => begun.open(Date.now()), { pollTimeout: 10_000 });
  await sleep(300);
  const begin = Date.now();

  await queue.add("now", {});

  assert.ok((await begun.opened) - begin < 3_000);
});

plain("limits_the_rate_of_a_worker", async (world) => {
  const queue = world.queue();
  await queue.addBulk(many(4));
  const starts = [];

  const worker = await world.worker(queue, async () => starts.push(Date.now()), {
    concurrency: 4, limiter: { max: 2, duration: 500 },
  });

  await until(() => starts.length === 4);
  assert.ok(starts[2] - starts[0] >= 480, `${starts[2] - starts[0]} ms`);
  assert.equal(worker.getRateLimiterInfo().max, 2);
});

plain("removes_finished_jobs_if_the_worker_says_so", async (world) => {
  const queue = world.queue();
  const [good, bad] = [await queue.add("good", {}), await queue.add("bad", {}, { attempts: 1 })];
  let runs = 0;

  await world.worker(queue, async (job) => {
    runs++;
    if (job.name === "bad") throw new Error("no");
  }, { removeOnComplete: true, removeOnFail: true });

  await until(async () => runs === 2 && (await queue.getJobState(bad.id)) === "unknown");
  await until(async () => (await queue.getJobState(good.id)) === "unknown");
});

plain("works_in_batches", async (world) => {
  const queue = world.queue();
  const jobs = await queue.addBulk(many(6));
  const sizes = [];

  await world.worker(queue, async (job) => {
    const batch = job.getBatch();
    sizes.push(batch.length);
    batch.find((member) => member.data.n === 2)?.setAsFailed(new Error("only this one"));
    return "batched";
  }, { batch: { size: 3, minSize: 3, timeout: 5_000 } });

  await until(async () => (await queue.getCompletedCount()) === 5);
  assert.deepEqual(sizes.slice(0, 2), [3, 3]);
  await until(async () => ["failed", "delayed", "waiting"].includes(await queue.getJobState(jobs[2].id)));
  assert.equal((await queue.getJob(jobs[2].id)).failedReason, "only this one");
});

plain("works_a_batch_that_did_not_fill_in_time", async (world) => {
  const queue = world.queue();
  await queue.addBulk(many(2));
  const sizes = [];

  await world.worker(queue, async (job) => sizes.push(job.getBatch().length), {
    batch: { size: 10, minSize: 5, timeout: 300 },
  });

  await until(async () => (await queue.getCompletedCount()) === 2);
  assert.deepEqual(sizes, [2]);
});

plain("works_without_locks", async (world) => {
  const queue = world.queue();
  const { id } = await queue.add("x", {});

  await world.worker(queue, async () => "unlocked", { useLocks: false });

  await until(async () => (await queue.getJobState(id)) === "completed");
});

plain("processes_a_job_taken_by_hand", async (world) => {
  const queue = world.queue();
  const { id } = await queue.add("x", { n: 4 });
  const worker = await world.worker(queue, async (job) => job.data.n + 1, { autorun: false });

  await worker.processJobManually(await worker.getNextJob());

  await until(async () => (await queue.getJobState(id)) === "completed");
  assert.equal((await queue.getJob(id)).returnvalue, 5);
  assert.equal(await worker.getNextJob(), undefined);
});

plain("works_in_a_sandbox", async (world) => {
  const queue = world.queue();
  const processor = join(world.directory(), "processor.js");
  writeFileSync(processor, "export default async (job) => { job.progress(50); return job.data.n * 3; };");
  const { id } = await queue.add("x", { n: 5 });

  const worker = new SandboxedWorker(queue.name, {
    processor, connection: world.connection(), concurrency: 1, pollInterval: 20,
  });
  worker.on("error", () => undefined);
  world.later(() => worker.stop());
  await worker.start();

  await until(async () => (await queue.getJobState(id)) === "completed");
  assert.equal((await queue.getJob(id)).returnvalue, 15);
});

plain("frees_the_jobs_of_a_worker_that_breaks_off", async (world) => {
  const queue = world.queue();
  const { id } = await queue.add("x", {});
  const hand = await world.hand(queue);
  assert.equal((await hand.getNextJob()).id, id);

  hand.tcpPool.close();

  await until(async () => (await queue.getJobState(id)) === "waiting");
  assert.equal((await queue.getJob(id)).attemptsMade, 0);
});

plain("counts_attempts_of_a_job_that_dies", async (world) => {
  const queue = world.queue();
  const { id } = await queue.add("x", {}, { attempts: 3, backoff: 10 });

  await world.worker(queue, broken);

  await until(async () => (await queue.getJobState(id)) === "failed");
  assert.equal((await queue.getJob(id)).attemptsMade, 3);
});

plain("cancels_all_jobs_of_a_worker", async (world) => {
  const queue = world.queue();
  let begun = 0;
  await queue.addBulk([1, 2].map((n) => ({ name: "x", data: { n }, opts: { attempts: 1 } })));
  const worker = await world.worker(queue, async (_job, { signal }) => {
    begun++;
    await new Promise((_, reject) => signal.addEventListener("abort", () => reject(new Error("all off"))));
  }, { concurrency: 2 });
  await until(() => begun === 2);

  worker.cancelAllJobs("all off");

  await until(async () => (await queue.getFailedCount()) === 2);
});

plain("holds_a_worker_for_a_while", async (world) => {
  const queue = world.queue();
  const starts = [];
  const worker = await world.worker(queue, async () => starts.push(Date.now()), { autorun: false });
  worker.rateLimit(700);
  assert.equal(worker.isRateLimited(), true);
  const begin = Date.now();
  await queue.add("x", {});

  worker.run();

  await until(() => starts.length === 1);
  assert.ok(starts[0] - begin >= 650, `${starts[0] - begin} ms`);
});

plain("fails_in_a_sandbox", async (world) => {
  const queue = world.queue();
  const processor = join(world.directory(), "processor.js");
  writeFileSync(processor, 'export default async () => { throw new Error("in the sandbox"); };');
  const { id } = await queue.add("x", {}, { attempts: 1 });

  const worker = new SandboxedWorker(queue.name, {
    processor, connection: world.connection(), concurrency: 1, pollInterval: 20,
  });
  worker.on("error", () => undefined);
  world.later(() => worker.stop());
  await worker.start();

  await until(async () => (await queue.getJobState(id)) === "failed");
  assert.equal((await queue.getJob(id)).failedReason, "in the sandbox");
});

plain("works_over_one_connection_without_pipelining", async (world) => {
  const connection = { poolSize: 1, pipelining: false };
  const queue = world.queue({ connection });
  const jobs = await queue.addBulk(many(10));

  await world.worker(queue, async (job) => job.data.n, { connection, concurrency: 3, pollTimeout: 0 });

  await until(async () => (await queue.getCompletedCount()) === 10);
  assert.equal((await queue.getJob(jobs[7].id)).returnvalue, 7);
});

plain("talks_to_the_broker_by_command", async (world) => {
  const pool = new TcpConnectionPool(world.connection({ poolSize: 3 }));
  world.later(() => pool.close());
  await pool.connect();
  const queue = world.fresh();

  const { ok, id } = await pool.send({ cmd: "PUSH", queue, name: "x", data: { n: 1 } });
  assert.ok(ok && id);
  const hello = await pool.send({ cmd: "Hello", protocolVersion: 3, capabilities: ["pipelining"] });
  assert.deepEqual([hello.server, hello.protocolVersion], ["bunqueue", 3]);
  const replies = await pool.sendParallel([{ cmd: "Ping" }, { cmd: "Count", queue }, { cmd: "Nonsense" }]);

  assert.deepEqual(replies.map((reply) => reply.ok), [true, true, false]);
  assert.equal(replies[1].count, 1);
  assert.equal(replies[2].error, "Unknown command: Nonsense");
  assert.deepEqual([pool.getConnectedCount(), pool.getHealth().healthy], [3, true]);
});
