/** Scenarios: the class that is queue and worker in one. */
import { assert, gate, plain, sleep, until } from "./scenario.js";

const completed = (app, id) => until(async () => (await app.queue.getJobState(id)) === "completed");
const failed = (app, id) => until(async () => (await app.queue.getJobState(id)) === "failed");

plain("adds_and_works_in_one_object", async (world) => {
  const told = [];
  const app = world.simple({ processor: async (job) => job.data.n + 1, concurrency: 2 });
  app.on("completed", (job, result) => told.push([job.id, result]));

  const job = await app.add("next", { n: 1 });
  const bulk = await app.addBulk([{ name: "a", data: { n: 2 } }, { name: "b", data: { n: 3 } }]);

  await until(() => told.length === 3);
  assert.deepEqual(new Map(told), new Map([[job.id, 2], [bulk[0].id, 3], [bulk[1].id, 4]]));
  assert.equal((await app.getJob(job.id)).returnvalue, 2);
  assert.equal((await app.getJobCountsAsync()).completed, 3);
});

plain("sends_jobs_along_routes_by_name", async (world) => {
  const app = world.simple({
    routes: {
      mail: async (job) => `mailed ${job.data.to}`,
      fax: async (job) => `faxed ${job.data.to}`,
    },
  });

  const [mail, fax] = [await app.add("mail", { to: "a" }), await app.add("fax", { to: "b" })];
  const lost = await app.add("pigeon", {}, { attempts: 1 });

  await completed(app, fax.id);
  await failed(app, lost.id);
  assert.equal((await app.getJob(mail.id)).returnvalue, "mailed a");
  assert.equal((await app.getJob(fax.id)).returnvalue, "faxed b");
  assert.ok((await app.getJob(lost.id)).failedReason.includes("No route"));
});

plain("gathers_jobs_into_batches", async (world) => {
  const sizes = [];
  const app = world.simple({
    batch: {
      size: 3,
      timeout: 300,
      processor: async (jobs) => {
        sizes.push(jobs.length);
        return jobs.map((job) => job.data.n * 2);
      },
    },
    concurrency: 6,
  });

  const jobs = await app.addBulk([1, 2, 3, 4].map((n) => ({ name: "n", data: { n } })));

  for (const job of jobs) await completed(app, job.id);
  assert.equal(sizes.reduce((sum, size) => sum + size, 0), 4);
  assert.ok(sizes.length < 4, sizes);
  assert.equal((await app.getJob(jobs[3].id)).returnvalue, 8);
});

plain("wraps_handlers_in_middleware", async (world) => {
  const trace = [];
  const app = world.simple({ processor: async () => { trace.push("handler"); return 1; } });
  app.use(async (_job, next) => {
    trace.push("before");
    const result = await next();
    trace.push("after");
    return result + 10;
  });

  const { id } = await app.add("x", {});

  await completed(app, id);
  assert.deepEqual(trace, ["before", "handler", "after"]);
  assert.equal((await app.getJob(id)).returnvalue, 11);
});

plain("tries_again_inside_one_attempt", async (world) => {
  let runs = 0;
  const app = world.simple({
    processor: async () => {
      if (++runs < 3) throw new Error("flaky");
      return "ok";
    },
    retry: { maxAttempts: 4, delay: 20, strategy: "fixed" },
  });

  const { id } = await app.add("x", {});

  await completed(app, id);
  assert.equal(runs, 3);
  assert.equal((await app.getJob(id)).attemptsMade, 0);
});

plain("breaks_the_circuit_after_failures", async (world) => {
  const [opened, closed] = [gate(), gate()];
  let broken = true;
  const app = world.simple({
    processor: async () => {
      if (broken) throw new Error("down");
      return "up";
    },
    circuitBreaker: {
      threshold: 2, resetTimeout: 400, onOpen: (count) => opened.open(count), onClose: () => closed.open(true),
    },
  });
  for (let n = 0; n < 2; n++) await app.add("x", {}, { attempts: 1 });
  assert.equal(await opened.opened, 2);
  assert.equal(app.getCircuitState(), "open");
  broken = false;
  const { id } = await app.add("x", {});

  await closed.opened;

  await completed(app, id);
  assert.equal(app.getCircuitState(), "closed");
});

plain("triggers_one_job_by_another", async (world) => {
  const done = [];
  const app = world.simple({ processor: async (job) => { done.push([job.name, job.data.n]); return job.data.n * 2; } });
  app.trigger({ on: "order", create: "invoice", data: (result) => ({ n: result }) });

  await app.add("order", { n: 4 });

  await until(() => done.length === 2);
  assert.deepEqual(done, [["order", 4], ["invoice", 8]]);
});

plain("fails_jobs_that_waited_too_long", async (world) => {
  let runs = 0;
  const app = world.simple({ processor: async () => ++runs, ttl: { perName: { stale: 100 } }, autorun: false });
  const { id } = await app.add("stale", {}, { attempts: 1 });
  await sleep(200);

  app.worker.run();

  await failed(app, id);
  assert.equal(runs, 0);
  assert.ok((await app.getJob(id)).failedReason.includes("expired"));
});

plain("removes_duplicates_by_itself", async (world) => {
  const app = world.simple({ processor: async () => null, autorun: false, deduplication: { ttl: 60_000 } });

  const ids = [];
  for (const n of [1, 1, 2]) ids.push((await app.add("x", { n })).id);

  assert.equal(ids[0], ids[1]);
  assert.notEqual(ids[0], ids[2]);
  assert.equal(await app.countAsync(), 2);
});

plain("schedules_from_the_simple_class", async (world) => {
  let runs = 0;
  const app = world.simple({ processor: async () => ++runs });

  const every = await app.every(`beat-${world.name}`, 200, { n: 1 });
  const cron = await app.cron(`daily-${world.name}`, "0 9 * * *", { n: 2 }, { timezone: "Europe/Rome" });

  assert.equal(every.every, 200);
  assert.equal(cron.pattern, "0 9 * * *");
  assert.equal((await app.listCrons()).length, 2);
  await until(() => runs >= 2);
  assert.equal(await app.removeCron(`beat-${world.name}`), true);
  assert.equal((await app.listCrons()).length, 1);
});

plain("cancels_from_the_simple_class", async (world) => {
  const begun = gate();
  const app = world.simple({
    processor: async (_job, { signal }) => {
      begun.open();
      await new Promise((_, reject) => signal.addEventListener("abort", () => reject(new Error("cancelled"))));
    },
  });
  const { id } = await app.add("x", {}, { attempts: 1 });
  await begun.opened;

  app.cancel(id);

  await failed(app, id);
  assert.equal((await app.getJob(id)).failedReason, "cancelled");
});

plain("handles_dead_letters_from_the_simple_class", async (world) => {
  let broken = true;
  const app = world.simple({
    processor: async () => { if (broken) throw new Error("no"); },
    dlq: { maxEntries: 5, autoRetry: false },
  });
  const { id } = await app.add("x", {}, { attempts: 1 });
  await failed(app, id);

  assert.equal((await app.getDlqConfigAsync()).maxEntries, 5);
  assert.equal((await app.getDlqStatsAsync()).total, 1);
  assert.equal((await app.getDlqAsync())[0].job.id, id);
  broken = false;
  assert.equal(await app.retryDlqAsync(), 1);

  await completed(app, id);
  assert.equal(await app.purgeDlqAsync(), 0);
});

plain("raises_the_priority_of_old_jobs", async (world) => {
  const app = world.simple({
    processor: async () => null,
    autorun: false,
    priorityAging: { interval: 50, minAge: 0, boost: 3, maxPriority: 7 },
  });

  const { id } = await app.add("x", {});

  await until(async () => (await app.getJob(id)).priority === 7);
  assert.equal(await app.queue.getJobState(id), "prioritized");
});

plain("pauses_the_simple_class", async (world) => {
  let runs = 0;
  const app = world.simple({ processor: async () => ++runs });
  await app.pauseAsync();
  assert.equal(app.isPaused(), true);
  const { id } = await app.add("x", {});
  await sleep(250);
  assert.equal(runs, 0);

  await app.resumeAsync();

  await completed(app, id);
});
