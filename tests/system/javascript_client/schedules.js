/** Scenarios: jobs that come by the clock. */
import { assert, plain, sleep, until } from "./scenario.js";

plain("adds_jobs_at_intervals", async (world) => {
  const queue = world.queue();
  const id = `every-${world.name}`;
  const runs = [];
  await world.worker(queue, async (job) => runs.push([job.name, job.data.n]));

  const info = await queue.upsertJobScheduler(id, { every: 250 }, { name: "tick", data: { n: 7 } });

  assert.deepEqual([info.id, info.name, info.every], [id, "tick", 250]);
  await until(() => runs.length >= 3);
  assert.deepEqual(runs[0], ["tick", 7]);
  assert.equal(await queue.removeJobScheduler(id), true);
  await sleep(800);
  const count = runs.length;
  await sleep(500);
  assert.equal(runs.length, count);
});

plain("stops_a_scheduler_at_its_limit", async (world) => {
  const queue = world.queue();
  let runs = 0;
  await world.worker(queue, async () => ++runs);

  await queue.upsertJobScheduler(`limit-${world.name}`, { every: 150, limit: 2 }, { name: "tick" });

  await until(() => runs === 2);
  await sleep(600);
  assert.equal(runs, 2);
});

plain("reads_cron_patterns_in_their_time_zone", async (world) => {
  const queue = world.queue();
  const id = `cron-${world.name}`;

  const info = await queue.upsertJobScheduler(
    id, { pattern: "30 3 * * *", timezone: "Asia/Kathmandu" }, { name: "nightly", data: {} });

  const next = new Date(info.next);
  assert.deepEqual([next.getUTCHours(), next.getUTCMinutes()], [21, 45]);
  assert.ok(info.next > Date.now() && info.next < Date.now() + 86_400_000 + 60_000);
  assert.equal(info.pattern, "30 3 * * *");
  await queue.removeJobScheduler(id);
});

plain("lists_the_schedulers_of_a_queue", async (world) => {
  const [queue, other] = [world.queue(), world.queue()];
  const ids = ["a", "b"].map((letter) => `${world.name}-${letter}`);
  await queue.upsertJobScheduler(ids[0], { every: 60_000 }, { name: "first" });
  await queue.upsertJobScheduler(ids[1], { pattern: "0 0 1 1 *" }, { name: "second" });
  await other.upsertJobScheduler(`${world.name}-c`, { every: 60_000 });

  const listed = await queue.getJobSchedulers();

  assert.deepEqual(listed.map((info) => info.id).sort(), ids);
  assert.equal(await queue.getJobSchedulersCount(), 2);
  const second = await queue.getJobScheduler(ids[1]);
  assert.deepEqual([second.name, second.pattern, second.every], ["second", "0 0 1 1 *", undefined]);
  assert.equal(await queue.getJobScheduler("nobody"), null);
  assert.equal(await queue.removeJobScheduler(ids[0]), true);
  assert.equal(await queue.getJobSchedulersCount(), 1);
  assert.equal(await queue.removeJobScheduler("nobody"), false);
});

plain("changes_a_scheduler_in_place", async (world) => {
  const queue = world.queue();
  const id = `upsert-${world.name}`;
  await queue.upsertJobScheduler(id, { every: 60_000 }, { name: "old" });

  await queue.upsertJobScheduler(id, { every: 90_000 }, { name: "new" });

  const info = await queue.getJobScheduler(id);
  assert.deepEqual([info.name, info.every], ["new", 90_000]);
  assert.equal(await queue.getJobSchedulersCount(), 1);
});

plain("runs_a_scheduler_at_once_if_asked", async (world) => {
  const queue = world.queue();

  await queue.upsertJobScheduler(
    `now-${world.name}`, { every: 60_000, immediately: true }, { name: "now" });

  await until(async () => (await queue.getWaitingCount()) === 1);
});

plain("gives_scheduled_jobs_their_options", async (world) => {
  const queue = world.queue();

  await queue.upsertJobScheduler(`opts-${world.name}`, { every: 60_000, immediately: true },
    { name: "job", opts: { attempts: 6, priority: 4, backoff: 123 } });

  const [job] = await until(async () => {
    const jobs = await queue.getPrioritized();
    return jobs.length > 0 && jobs;
  });
  assert.deepEqual([job.opts.attempts, job.priority], [6, 4]);
});

plain("does_not_let_runs_of_a_scheduler_overlap", async (world) => {
  const queue = world.queue();
  await queue.upsertJobScheduler(`overlap-${world.name}`, { every: 150 }, { name: "slow" });
  let [running, most, runs] = [0, 0, 0];

  await world.worker(queue, async () => {
    most = Math.max(most, ++running);
    await sleep(500);
    running--;
    runs++;
  }, { concurrency: 4 });

  await until(() => runs >= 2);
  assert.equal(most, 1);
  await queue.removeJobScheduler(`overlap-${world.name}`);
});

plain("skips_runs_while_no_worker_is_there_if_asked", async (world) => {
  const queue = world.queue();
  const id = `skip-${world.name}`;
  await queue.upsertJobScheduler(id, { every: 150, skipIfNoWorker: true }, { name: "tick" });
  await sleep(600);
  assert.equal(await queue.countAsync(), 0);
  let runs = 0;

  await world.worker(queue, async () => ++runs);

  await until(() => runs > 0);
  await queue.removeJobScheduler(id);
});

plain("refuses_bad_patterns_and_zones", async (world) => {
  const queue = world.queue();

  assert.equal(await queue.upsertJobScheduler(`bad-${world.name}`, { pattern: "every day" }), null);
  assert.equal(await queue.upsertJobScheduler(
    `bad-${world.name}`, { pattern: "0 0 * * *", timezone: "Mars/Olympus" }), null);

  assert.equal(await queue.getJobSchedulersCount(), 0);
});

plain("keeps_schedulers_of_prefixes_apart", async (world) => {
  const name = world.fresh();
  const [dev, prod] = ["dev:", "prod:"].map((prefixKey) => world.queue({ name, prefixKey }));
  await dev.upsertJobScheduler("report", { every: 60_000 }, { name: "of dev" });
  await prod.upsertJobScheduler("report", { every: 90_000 }, { name: "of prod" });

  assert.deepEqual(
    [(await dev.getJobScheduler("report")).name, (await prod.getJobScheduler("report")).name],
    ["of dev", "of prod"]);
  await dev.removeJobScheduler("report");
  assert.equal((await prod.getJobScheduler("report")).every, 90_000);
});

plain("repeats_a_job", async (world) => {
  const queue = world.queue();
  const runs = [];
  await world.worker(queue, async (job) => runs.push([job.id, job.data.n, Date.now()]));

  await queue.add("again", { n: 3 }, { repeat: { every: 200, limit: 2 } });

  await until(() => runs.length === 3); // once, and two repetitions
  await sleep(500);
  assert.equal(runs.length, 3);
  assert.deepEqual(runs.map(([, n]) => n), [3, 3, 3]);
  assert.equal(new Set(runs.map(([id]) => id)).size, 3);
  assert.ok(runs[1][2] - runs[0][2] >= 150, `${runs[1][2] - runs[0][2]} ms`);
});
