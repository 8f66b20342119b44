/** Scenarios: the broker is killed and comes back on the same file and port. */
import { assert, gate, restart, sleep, until } from "./scenario.js";

/** Kill the broker, and wait until a queue reaches it again. */
async function killed(world, queue) {
  await world.ask();
  await until(async () => {
    try {
      await queue.countAsync();
      return (await queue.add("probe", {}, { delay: 3_600_000 })).id;
    } catch {
      return false;
    }
  });
}

restart("a_queue_and_a_worker_find_the_broker_again", async (world) => {
  const queue = world.queue();
  const worker = await world.worker(queue, async (job) => job.data.n, { heartbeatInterval: 500 });
  const before = await queue.add("before", { n: 1 });
  await until(async () => (await queue.getJobState(before.id)) === "completed");

  await killed(world, queue);

  const after = await queue.add("after", { n: 2 });
  await until(async () => (await queue.getJobState(after.id)) === "completed");
  assert.equal((await queue.getJob(before.id)).returnvalue, 1);
  assert.equal((await queue.getJob(after.id)).returnvalue, 2);
  assert.equal(worker.isRunning(), true);
  // A kernel that ends a broker may still take a connection, and end that too. Client 2.9.5 tells
  // when it lost its registration there, and does not repeat it.
  const isLost = () => worker.errors.some((error) => error.context === "worker-register");
  await until(async () => isLost() || (await queue.getWorkersCount()) === 1);
});

restart("everything_that_was_confirmed_survives", async (world) => {
  const queue = world.queue();
  const hand = await world.hand(queue);
  const ids = {};
  for (const state of ["completed", "failed"]) {
    ids[state] = (await queue.add(state, {}, { attempts: 1, durable: true })).id;
    const job = await hand.getNextJob();
    if (state === "completed") await queue.moveJobToCompleted(job.id, { r: [1, null] }, job.token);
    else await queue.moveJobToFailed(job.id, new Error("broken"), job.token);
  }
  ids.waiting = (await queue.add("w", { kept: "w" }, { durable: true })).id;
  ids.prioritized = (await queue.add("p", {}, { durable: true, priority: 4 })).id;
  ids.delayed = (await queue.add("d", {}, { durable: true, delay: 3_600_000 })).id;
  await queue.addJobLog(ids.waiting, "a line");
  await queue.pauseAsync();

  await killed(world, queue);

  for (const [state, id] of Object.entries(ids)) assert.equal(await queue.getJobState(id), state);
  assert.deepEqual((await queue.getJob(ids.completed)).returnvalue, { r: [1, null] });
  assert.equal((await queue.getJob(ids.failed)).failedReason, "broken");
  assert.equal((await queue.getDlqAsync())[0].job.id, ids.failed);
  assert.deepEqual((await queue.getJob(ids.waiting)).data, { kept: "w" });
  assert.equal(await queue.isPausedAsync(), true);
});

restart("a_job_that_ran_meanwhile_is_worked_again", async (world) => {
  const queue = world.queue();
  const begun = gate();
  const { id } = await queue.add("long", {}, { attempts: 3, backoff: 100, durable: true });
  let runs = 0;
  await world.worker(queue, async () => {
    runs++;
    begun.open();
    await sleep(1_500);
    return "done";
  });
  await begun.opened;

  await killed(world, queue);

  await until(async () => (await queue.getJobState(id)) === "completed");
  assert.ok(runs <= 2, runs);
});

restart("a_listener_hears_the_broker_again", async (world) => {
  const queue = world.queue();
  const events = await world.events(queue);
  await queue.add("before", {});
  await until(() => events.named("waiting").length === 1);

  await killed(world, queue);
  await until(() => events.waitUntilReady().then(() => true, () => false));

  const { id } = await queue.add("after", {});
  await until(() => events.named("waiting").some((said) => said.jobId === id));
});

restart("a_flow_goes_on_after_the_restart", async (world) => {
  const queue = world.queue();
  const step = (name) => ({ name, queueName: queue.name, data: {} });
  const { job } = await world.flows().add({ ...step("parent"), children: [step("one"), step("two")] });
  const hand = await world.hand(queue);
  const one = await hand.getNextJob();
  await queue.moveJobToCompleted(one.id, 1, one.token);

  await killed(world, queue);

  let sum;
  await world.worker(queue, async (job) => {
    if (job.name !== "parent") return 2;
    sum = Object.values(await job.getChildrenValues()).reduce((total, n) => total + n, 0);
  });
  await until(async () => (await queue.getJobState(job.id)) === "completed");
  assert.equal(sum, 3);
});

restart("a_scheduler_goes_on_after_the_restart", async (world) => {
  const queue = world.queue();
  const id = `restart-${world.name}`;
  let runs = 0;
  await queue.upsertJobScheduler(id, { every: 300 }, { name: "tick", data: {} });
  await world.worker(queue, async () => ++runs);
  await until(() => runs > 0);

  await killed(world, queue);

  const count = runs;
  await until(() => runs > count + 1);
  assert.equal((await queue.getJobScheduler(id)).every, 300);
  await queue.removeJobScheduler(id);
});

restart("limits_survive_the_restart", async (world) => {
  const queue = world.queue();
  await queue.setGlobalConcurrencyAsync(3);
  await queue.setGlobalRateLimitAsync(100, 5_000);
  await queue.setGroupConcurrency("a", 2);
  await queue.setDlqConfigAsync({ maxEntries: 9 });

  await killed(world, queue);

  assert.equal(await queue.getGlobalConcurrency(), 3);
  assert.deepEqual(await queue.getGlobalRateLimit(), { max: 100, duration: 5_000 });
  assert.equal(await queue.getGroupConcurrency("a"), 2);
  assert.equal((await queue.getDlqConfigAsync()).maxEntries, 9);
});

restart("a_forwarder_goes_on_after_the_restart", async (world) => {
  const [edge, central] = [world.queue(), world.queue()];
  const forwarder = edge.forward({ to: world.connection(), queue: central.name });
  forwarder.on("error", () => undefined);
  world.later(() => forwarder.close());
  await edge.add("before", {});
  await until(async () => (await central.countAsync()) === 1);

  await killed(world, central);

  const { id } = await edge.add("after", { n: 1 }, { durable: true });
  await until(async () => (await central.getJobState(`fwd:${edge.name}:${id}`)) === "waiting");
});

restart("a_workflow_goes_on_after_the_restart", async (world) => {
  const { Workflow } = await import("bunqueue/workflow");
  const workflow = new Workflow("resumed").step("a", () => 1).waitFor("go").step("b", (ctx) => ctx.steps.a + 1);
  const queue = world.queue();
  const engine = world.engine([workflow]);
  engine.worker.on("error", () => undefined);
  const { id } = await engine.start("resumed", {});
  await until(() => engine.getExecution(id).state === "waiting");

  await killed(world, queue);

  await until(() => engine.signal(id, "go").then(() => true, () => false));
  await until(() => engine.getExecution(id).state === "completed");
  assert.equal(engine.getExecution(id).steps.b.result, 2);
});
