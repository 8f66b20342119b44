/** Scenarios: jobs are added. */
import { Queue } from "bunqueue/client";
import { assert, plain, raises, sleep, until } from "./scenario.js";

const range = (count) => Array.from({ length: count }, (_, index) => index);

plain("keeps_a_job_with_its_name_and_data", async (world) => {
  const queue = world.queue();
  const data = { text: "Žluťoučký 🐎", list: [1, 2.5, null, [{}]], flag: false, big: 2 ** 53 - 1 };

  const added = await queue.add("greet", data);

  const job = await queue.getJob(added.id);
  assert.equal(job.name, "greet");
  assert.deepEqual(job.data, data);
  assert.equal(job.queueName, queue.name);
  assert.equal(job.attemptsMade, 0);
  assert.ok(Math.abs(job.timestamp - Date.now()) < 10_000);
});

plain("leaves_out_what_is_undefined", async (world) => {
  const queue = world.queue();

  const { id } = await queue.add("sparse", { kept: null, dropped: undefined });

  assert.equal(JSON.stringify((await queue.getJob(id)).data), '{"kept":null}');
});

plain("keeps_bytes_and_dates", async (world) => {
  const queue = world.queue();
  const when = new Date(1_700_000_000_123);

  const { id } = await queue.add("binary", { bytes: new Uint8Array([0, 255, 7]), when });

  const { data } = await queue.getJob(id);
  assert.deepEqual([...data.bytes], [0, 255, 7]);
  assert.equal(new Date(data.when).getTime(), when.getTime());
});

plain("carries_megabytes", async (world) => {
  const queue = world.queue();

  const { id } = await queue.add("big", { text: "x".repeat(5_000_000) });

  assert.equal((await queue.getJob(id)).data.text.length, 5_000_000);
});

plain("adds_in_bulk_in_order", async (world) => {
  const queue = world.queue();

  const jobs = await queue.addBulk(range(250).map((n) => ({ name: `n${n}`, data: { n } })));

  assert.equal(new Set(jobs.map((job) => job.id)).size, 250);
  const waiting = await queue.getWaitingAsync(0, 250);
  assert.deepEqual(waiting.map((job) => [job.id, job.name]), jobs.map((job) => [job.id, job.name]));
  assert.deepEqual((await queue.getJob(jobs[99].id)).data, { n: 99 });
  assert.deepEqual(await queue.addBulk([]), []);
});

plain("adds_a_bulk_all_or_nothing", async (world) => {
  const queue = world.queue();

  await raises("jobs[1]: priority must be at most 1000000", () =>
    queue.addBulk([
      { name: "good", data: {} },
      { name: "bad", data: {}, opts: { priority: 1e9 } },
    ]));

  assert.equal(await queue.countAsync(), 0);
});

plain("batches_adds_that_come_at_once", async (world) => {
  const queue = world.queue();

  const jobs = await Promise.all(range(500).map((n) => queue.add(`n${n}`, { n })));

  assert.equal(new Set(jobs.map((job) => job.id)).size, 500);
  for (const n of [0, 1, 250, 499]) {
    const job = await queue.getJob(jobs[n].id);
    assert.deepEqual([job.name, job.data], [`n${n}`, { n }]);
  }
  assert.equal(await queue.countAsync(), 500);
});

plain("batches_keep_each_jobs_own_options", async (world) => {
  const queue = world.queue();

  const [, custom, delayed, urgent] = await Promise.all([
    queue.add("first", {}),
    queue.add("custom", {}, { jobId: `${world.name}-id` }),
    queue.add("delayed", {}, { delay: 60_000 }),
    queue.add("urgent", {}, { priority: 9 }),
  ]);

  assert.equal(custom.id, `${world.name}-id`);
  assert.equal(await queue.getJobState(delayed.id), "delayed");
  assert.equal(await queue.getJobState(urgent.id), "prioritized");
});

plain("adds_without_batching_if_asked", async (world) => {
  const queue = world.queue({ autoBatch: { enabled: false } });

  const jobs = await Promise.all(range(50).map((n) => queue.add("n", { n })));

  assert.equal(new Set(jobs.map((job) => job.id)).size, 50);
  assert.equal(await queue.countAsync(), 50);
});

plain("takes_a_custom_id_once_while_it_lives", async (world) => {
  const queue = world.queue();
  const jobId = `order-${world.name}`;

  const first = await queue.add("charge", { n: 1 }, { jobId });
  const twin = await queue.add("charge", { n: 2 }, { jobId });

  assert.deepEqual([first.id, twin.id], [jobId, jobId]);
  assert.deepEqual((await queue.getJob(jobId)).data, { n: 1 });
  assert.equal(await queue.countAsync(), 1);
});

plain("takes_a_custom_id_again_after_completion", async (world) => {
  const queue = world.queue();
  const jobId = `again-${world.name}`;
  const worker = await world.worker(queue, async (job) => job.data.n);
  await queue.add("run", { n: 1 }, { jobId });
  await until(async () => (await queue.getJobState(jobId)) === "completed");
  await worker.close();

  await queue.add("run", { n: 2 }, { jobId });

  const job = await queue.getJob(jobId);
  assert.deepEqual(job.data, { n: 2 });
  assert.equal(await queue.getJobState(jobId), "waiting");
  assert.equal(job.returnvalue, undefined);
});

plain("applies_default_job_options", async (world) => {
  const queue = world.queue({ defaultJobOptions: { attempts: 7, priority: 4, delay: 60_000 } });

  const plainJob = await queue.add("default", {});
  const own = await queue.add("own", {}, { attempts: 2, delay: 0 });

  const [first, second] = [await queue.getJob(plainJob.id), await queue.getJob(own.id)];
  assert.deepEqual([first.opts.attempts, first.priority, first.delay], [7, 4, 60_000]);
  assert.deepEqual([second.opts.attempts, second.priority, second.delay], [2, 4, 0]);
});

plain("keeps_prefixes_apart", async (world) => {
  const name = world.fresh();
  const [dev, prod] = [world.queue({ name, prefixKey: "dev:" }), world.queue({ name, prefixKey: "prod:" })];
  const done = [];

  await dev.add("x", { from: "dev" });
  await prod.add("x", { from: "prod" });
  await world.worker(name, async (job) => done.push(job.data.from), { prefixKey: "dev:" });

  await until(async () => (await dev.getCompletedCount()) === 1);
  assert.deepEqual(done, ["dev"]);
  assert.equal(await prod.getWaitingCount(), 1);
});

plain("takes_higher_priorities_first", async (world) => {
  const queue = world.queue();
  for (const priority of [1, 10, 5, 0, 10]) await queue.add("p", { priority }, { priority });
  const done = [];

  await world.worker(queue, async (job) => done.push(job.data.priority));

  await until(() => done.length === 5);
  assert.deepEqual(done, [10, 10, 5, 1, 0]);
});

plain("takes_the_newest_first_if_asked", async (world) => {
  const queue = world.queue();
  for (const n of range(4)) {
    await queue.add("stack", { n }, { lifo: true });
    await sleep(3);
  }
  const done = [];

  await world.worker(queue, async (job) => done.push(job.data.n));

  await until(() => done.length === 4);
  assert.deepEqual(done, [3, 2, 1, 0]);
});

plain("holds_a_delayed_job_back", async (world) => {
  const queue = world.queue();
  const begin = Date.now();
  const job = await queue.add("later", {}, { delay: 2_000 });
  assert.equal(await queue.getJobState(job.id), "delayed");
  let startedAt;

  await world.worker(queue, async () => (startedAt = Date.now()));

  await until(() => startedAt);
  assert.ok(startedAt - begin >= 1_995, `after ${startedAt - begin} ms`);
});

plain("forgets_what_is_removed_on_complete", async (world) => {
  const queue = world.queue();
  const ids = [];
  for (const removeOnComplete of [true, false]) {
    ids.push((await queue.add("x", {}, { removeOnComplete })).id);
  }

  await world.worker(queue, async () => "done");

  await until(async () => (await queue.getJobState(ids[1])) === "completed");
  assert.equal(await queue.getJobState(ids[0]), "unknown");
  assert.equal(await queue.getJob(ids[0]), null);
});

plain("forgets_what_is_removed_on_fail", async (world) => {
  const queue = world.queue();
  const gone = await queue.add("x", {}, { removeOnFail: true, attempts: 1 });
  const kept = await queue.add("x", {}, { attempts: 1 });

  await world.worker(queue, async () => { throw new Error("no"); });

  await until(async () => (await queue.getJobState(kept.id)) === "failed");
  assert.equal(await queue.getJobState(gone.id), "unknown");
});

plain("admits_one_owner_of_a_deduplication_id", async (world) => {
  const queue = world.queue();
  const deduplication = { id: "invoice-7" };

  const owner = await queue.add("bill", { n: 1 }, { deduplication });
  const twin = await queue.add("bill", { n: 2 }, { deduplication });

  assert.equal(twin.id, owner.id);
  assert.equal(await queue.countAsync(), 1);
  assert.equal(await queue.getDeduplicationJobId("invoice-7"), owner.id);
  assert.equal(await queue.removeDeduplicationKey("invoice-7"), 1);
  assert.equal(await queue.getDeduplicationJobId("invoice-7"), null);
  const next = await queue.add("bill", { n: 3 }, { deduplication });
  assert.notEqual(next.id, owner.id);
});

plain("lets_a_deduplication_id_go_in_time", async (world) => {
  const queue = world.queue();
  const deduplication = { id: "key", ttl: 1_500 };
  const owner = await queue.add("x", {}, { deduplication });
  assert.equal((await queue.add("x", {}, { deduplication })).id, owner.id);

  await sleep(1_600);

  assert.notEqual((await queue.add("x", {}, { deduplication })).id, owner.id);
});

plain("replaces_the_owner_of_a_deduplication_id", async (world) => {
  const queue = world.queue();
  const deduplication = { id: "key", ttl: 60_000, replace: true };

  const old = await queue.add("x", { n: 1 }, { deduplication, delay: 60_000 });
  const young = await queue.add("x", { n: 2 }, { deduplication, delay: 60_000 });

  assert.notEqual(young.id, old.id);
  assert.equal(await queue.getJobState(old.id), "unknown");
  assert.deepEqual((await queue.getJob(young.id)).data, { n: 2 });
  assert.equal(await queue.getDelayedCount(), 1);
});

plain("frees_a_deduplication_id_with_its_job", async (world) => {
  const queue = world.queue();
  const deduplication = { id: "key" };
  const job = await queue.add("x", {}, { deduplication });
  await world.worker(queue, async () => null);
  await until(async () => (await queue.getJobState(job.id)) === "completed");

  assert.notEqual((await queue.add("x", {}, { deduplication })).id, job.id);
});

plain("lets_a_job_give_its_deduplication_key_back", async (world) => {
  const queue = world.queue();
  const job = await queue.add("x", {}, { deduplication: { id: "key" } });
  const read = await queue.getJob(job.id);

  assert.equal(read.deduplicationId, "key");
  assert.equal(await read.removeDeduplicationKey(), true);
  assert.equal(await queue.getDeduplicationJobId("key"), null);
});

plain("refuses_bad_queue_names_and_options", async (world) => {
  await raises("Queue name contains invalid characters", () => world.queue({ name: "no spaces" }).add("x", {}));
  const queue = world.queue();
  await raises("jobs[0]: priority must be at most 1000000", () => queue.add("x", {}, { priority: 1e9 }));
  await raises("jobs[0]: delay must be at least 0", () => queue.add("x", {}, { delay: -1 }));
  await raises("jobs[0]: maxAttempts must be at least 1", () => queue.add("x", {}, { attempts: 0 }));
  assert.equal(await queue.countAsync(), 0);
});

plain("adds_what_must_be_on_disk_first", async (world) => {
  const queue = world.queue();

  const job = await queue.add("paid", { amount: 5 }, { durable: true });

  assert.equal(await queue.getJobState(job.id), "waiting");
});

plain("says_in_time_that_nobody_listens", async () => {
  const queue = new Queue("nobody", {
    connection: { host: "127.0.0.1", port: 1, commandTimeout: 500, poolSize: 1 },
    autoBatch: { enabled: false },
  });
  await raises("Command timeout", () => queue.add("x", {}));
  await queue.close();
});
