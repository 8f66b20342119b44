/** Scenarios: jobs of one queue that share a label. */
import { RateLimitError } from "bunqueue/client";
import { assert, crowd, plain, raises, sleep, until } from "./scenario.js";

const add = (queue, group, name = group, more = {}) =>
  queue.add(name, {}, { group: { id: group, ...more } });

plain("lets_groups_take_turns", async (world) => {
  const queue = world.queue();
  for (const group of ["a", "a", "a", "b", "c"]) await add(queue, group);
  const order = [];

  await world.worker(queue, async (job) => order.push(job.name));

  await until(() => order.length === 5);
  assert.deepEqual(order, ["a", "b", "c", "a", "a"]);
});

plain("takes_lower_priorities_first_inside_a_group", async (world) => {
  const queue = world.queue();
  for (const priority of [5, 0, 2]) await add(queue, "a", `p${priority}`, { priority });
  const order = [];

  await world.worker(queue, async (job) => order.push(job.name));

  await until(() => order.length === 3);
  assert.deepEqual(order, ["p0", "p2", "p5"]);
});

plain("limits_the_concurrency_of_a_group", async (world) => {
  const queue = world.queue();
  for (const group of ["a", "a", "a", "b", "b", "b"]) await add(queue, group);
  const [running, most] = [{ a: 0, b: 0 }, { a: 0, b: 0 }];

  await world.worker(queue, async (job) => {
    most[job.name] = Math.max(most[job.name], ++running[job.name]);
    await sleep(60);
    running[job.name]--;
  }, { concurrency: 6, group: { concurrency: 1 } });

  await until(async () => (await queue.getCompletedCount()) === 6);
  assert.deepEqual(most, { a: 1, b: 1 });
});

plain("gives_a_group_a_concurrency_of_its_own", async (world) => {
  const queue = world.queue();
  assert.equal(await queue.getGroupConcurrency("a"), null);
  await queue.setGroupConcurrency("a", 2);
  assert.equal(await queue.getGroupConcurrency("a"), 2);
  for (let n = 0; n < 4; n++) await add(queue, "a");
  const all = crowd();

  await world.worker(queue, all.handler, { concurrency: 4, group: { concurrency: 1 } });

  await until(() => all.running === 2);
  await sleep(200);
  all.letGo();
  await until(async () => (await queue.getCompletedCount()) === 4);
  assert.equal(all.most, 2);
  assert.equal(await queue.removeGroupConcurrency("a"), 1);
  assert.equal(await queue.getGroupConcurrency("a"), null);
});

plain("limits_the_rate_of_a_group", async (world) => {
  const queue = world.queue();
  for (const group of ["a", "a", "a", "b"]) await add(queue, group);
  const starts = [];

  await world.worker(queue, async (job) => starts.push([job.name, Date.now()]), {
    concurrency: 4, group: { limit: { max: 1, duration: 400 } },
  });

  await until(() => starts.length === 4);
  const times = starts.filter(([name]) => name === "a").map(([, time]) => time);
  assert.ok(times[2] - times[0] >= 700, `${times[2] - times[0]} ms`);
  const other = starts.find(([name]) => name === "b")[1];
  assert.ok(other < times[1], "the other group waited too");
});

plain("gives_a_group_a_rate_limit_of_its_own", async (world) => {
  const queue = world.queue();
  assert.equal(await queue.getGroupRateLimit("a"), null);

  await queue.setGroupRateLimit("a", 3, 60_000);

  assert.deepEqual(await queue.getGroupRateLimit("a"), { max: 3, duration: 60_000 });
  assert.equal(await queue.removeGroupRateLimit("a"), 1);
  assert.equal(await queue.getGroupRateLimit("a"), null);
  await raises("max must be a positive safe integer", () => queue.setGroupRateLimit("a", 0, 1_000));
});

plain("holds_a_group_for_a_while", async (world) => {
  const queue = world.queue();
  await add(queue, "a");
  await add(queue, "b");
  const runs = [];

  const worker = await world.worker(queue, async (job) => {
    runs.push([job.name, Date.now()]);
    if (job.name === "a" && runs.filter(([name]) => name === "a").length === 1) {
      await worker.rateLimitGroup(job, 500);
      throw new RateLimitError();
    }
  });

  await until(() => runs.length === 3);
  assert.deepEqual(runs.map(([name]) => name), ["a", "b", "a"]);
  assert.ok(runs[2][1] - runs[0][1] >= 480, `${runs[2][1] - runs[0][1]} ms`);
  await until(async () => (await queue.getCompletedCount()) === 2);
});

plain("pauses_a_group", async (world) => {
  const queue = world.queue();
  await add(queue, "a");
  await add(queue, "b");
  assert.equal(await queue.pauseGroup("a"), true);
  assert.deepEqual([await queue.isGroupPaused("a"), await queue.isGroupPaused("b")], [true, false]);
  const order = [];
  await world.worker(queue, async (job) => order.push(job.name));
  await until(() => order.length === 1);
  await sleep(200);
  assert.deepEqual(order, ["b"]);

  assert.equal(await queue.resumeGroup("a"), true);

  await until(() => order.length === 2);
});

plain("refuses_more_jobs_than_a_group_may_hold", async (world) => {
  const queue = world.queue();
  await add(queue, "a", "one", { maxSize: 2 });
  await add(queue, "a", "two", { maxSize: 2 });

  await raises("Group a has reached its maximum size of 2", () => add(queue, "a", "three", { maxSize: 2 }));
  await add(queue, "b", "other", { maxSize: 2 });

  assert.equal(await queue.getGroupJobsCount("a"), 2);
});

plain("counts_and_lists_the_jobs_of_a_group", async (world) => {
  const queue = world.queue();
  for (const priority of [1, 1, 4]) await add(queue, "a", `p${priority}`, { priority });
  await add(queue, "b");
  await queue.add("alone", {});

  assert.equal(await queue.getGroupJobsCount("a"), 3);
  assert.equal(await queue.getGroupsJobsCount(), 4);
  assert.equal(await queue.getGroupActiveCount("a"), 0);
  const jobs = await queue.getGroupJobs("a");
  assert.deepEqual(jobs.map((job) => job.name), ["p1", "p1", "p4"]);
  assert.deepEqual(await queue.getCountsPerPriorityForGroup("a"), { 1: 2, 4: 1 });
});

plain("batches_by_group", async (world) => {
  const queue = world.queue();
  for (const group of ["a", "b", "a", "b"]) await add(queue, group);
  const batches = [];

  await world.worker(queue, async (job) => {
    batches.push(job.getBatch().map((member) => member.name));
  }, { batch: { size: 2, minSize: 2, timeout: 500, groupAffinity: true } });

  await until(async () => (await queue.getCompletedCount()) === 4);
  assert.ok(batches.every((names) => new Set(names).size === 1), JSON.stringify(batches));
});

plain("tells_how_long_a_group_is_held", async (world) => {
  const queue = world.queue();
  await add(queue, "a");
  await add(queue, "a");
  await queue.setGroupRateLimit("a", 1, 60_000);
  const worker = await world.worker(queue, async () => null, { group: { limit: { max: 1, duration: 100 } } });
  await until(async () => (await queue.getCompletedCount()) === 1);
  await worker.close();

  const ttl = await queue.getGroupRateLimitTtl("a");

  assert.ok(ttl > 30_000 && ttl <= 60_000, ttl);
  assert.equal(await queue.getWaitingCount(), 1);
});
