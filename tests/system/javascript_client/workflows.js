/** Scenarios: the workflow engine, whose steps are jobs of a queue. */
import { Workflow } from "bunqueue/workflow";
import { assert, plain, sleep, until } from "./scenario.js";

/** Run a workflow to its end and return the execution. */
async function run(engine, name, input) {
  const { id } = await engine.start(name, input);
  return ended(engine, id);
}

function ended(engine, id) {
  return until(() => {
    const execution = engine.getExecution(id);
    const over = execution.state === "completed"
      || (execution.state === "failed" && execution.rollbackStatus !== undefined);
    return over && execution;
  });
}

plain("runs_a_workflow_step_by_step", async (world) => {
  const workflow = new Workflow("order")
    .step("reserve", (ctx) => ({ items: ctx.input.items.length }))
    .step("charge", (ctx) => ctx.steps.reserve.items * 10);
  const told = [];
  const engine = world.engine([workflow], { onEvent: (event) => told.push(event.type) });

  const execution = await run(engine, "order", { items: ["a", "b"] });

  assert.equal(execution.state, "completed");
  assert.equal(execution.steps.charge.result, 20);
  assert.deepEqual(told.filter((type) => type.startsWith("workflow:")), ["workflow:started", "workflow:completed"]);
});

plain("branches_and_runs_in_parallel", async (world) => {
  const workflow = new Workflow("parcel")
    .step("weigh", (ctx) => ctx.input.kilos)
    .branch((ctx) => (ctx.steps.weigh > 10 ? "truck" : "bike"))
    .path("truck", (path) => path.step("load", () => "by truck"))
    .path("bike", (path) => path.step("ride", () => "by bike"))
    .parallel((group) => group.step("label", () => "L").step("notify", () => "N"));
  const engine = world.engine([workflow]);

  const { state, steps } = await run(engine, "parcel", { kilos: 30 });

  assert.equal(state, "completed");
  assert.equal(steps.load.result, "by truck");
  assert.equal(steps.ride, undefined);
  assert.deepEqual([steps.label.result, steps.notify.result], ["L", "N"]);
});

plain("waits_for_a_signal", async (world) => {
  const workflow = new Workflow("approval")
    .step("ask", () => "asked")
    .waitFor("decision")
    .step("act", (ctx) => ctx.signals.decision.approved);
  const engine = world.engine([workflow]);
  const { id } = await engine.start("approval", {});
  await until(() => engine.getExecution(id).state === "waiting");

  await engine.signal(id, "decision", { approved: true });

  assert.equal((await ended(engine, id)).steps.act.result, true);
});

plain("undoes_the_steps_of_a_failed_workflow", async (world) => {
  const undone = [];
  const undo = (name) => ({ compensate: async () => { undone.push(name); } });
  const workflow = new Workflow("trip")
    .step("flight", () => "LH 1", undo("flight"))
    .step("hotel", () => "room 4", undo("hotel"))
    .step("car", () => { throw new Error("no cars"); }, { retry: 1 });
  const engine = world.engine([workflow]);

  const execution = await run(engine, "trip", {});

  assert.deepEqual([execution.state, execution.rollbackStatus], ["failed", "completed"]);
  assert.ok(execution.failureReason.includes("no cars"));
  assert.deepEqual(undone, ["hotel", "flight"]);
});

plain("loops_and_maps_over_items", async (world) => {
  const workflow = new Workflow("loops")
    .forEach((ctx) => ctx.input.items, "double", (ctx) => ctx.steps.__item * 2)
    .map("total", (ctx) => [0, 1, 2].reduce((sum, n) => sum + ctx.steps[`double:${n}`], 0))
    .doUntil((_ctx, iteration) => iteration >= 3, (loop) => loop.step("poll", () => "polled"));
  const engine = world.engine([workflow]);

  const { state, steps } = await run(engine, "loops", { items: [1, 2, 3] });

  assert.equal(state, "completed");
  assert.equal(steps.total.result, 12);
});

plain("runs_a_workflow_inside_another", async (world) => {
  const inner = new Workflow("inner").step("square", (ctx) => ctx.input.n ** 2);
  const outer = new Workflow("outer")
    .step("begin", () => 3)
    .subWorkflow("inner", (ctx) => ({ n: ctx.steps.begin }))
    .step("end", (ctx) => ctx.steps["sub:inner"].square);
  const engine = world.engine([inner, outer]);

  assert.equal((await run(engine, "outer", {})).steps.end.result, 9);
});

plain("repeats_a_step_that_failed", async (world) => {
  let tries = 0;
  const workflow = new Workflow("flaky").step("call", () => {
    if (++tries < 3) throw new Error("busy");
    return tries;
  }, { retry: 4 });
  const engine = world.engine([workflow]);

  assert.equal((await run(engine, "flaky", {})).steps.call.result, 3);
});

plain("takes_a_workflow_up_again_in_another_engine", async (world) => {
  const [queueName, dataPath] = [world.fresh(), `${world.directory()}/workflows.db`];
  const workflow = () => new Workflow("long")
    .step("first", () => "one")
    .waitFor("go")
    .step("second", () => "two");
  const before = world.engine([workflow()], { queueName, dataPath });
  const { id } = await before.start("long", {});
  await until(() => before.getExecution(id).state === "waiting");
  await before.close(true);

  const after = world.engine([workflow()], { queueName, dataPath });
  const recovered = await after.recover();
  await after.signal(id, "go");

  assert.deepEqual([recovered.waiting, recovered.total], [1, 1]);
  const execution = await ended(after, id);
  assert.deepEqual([execution.steps.first.result, execution.steps.second.result], ["one", "two"]);
});

plain("runs_many_workflows_at_once", async (world) => {
  const workflow = new Workflow("many").step("a", (ctx) => ctx.input.n).step("b", async (ctx) => {
    await sleep(5);
    return ctx.steps.a + 1;
  });
  const engine = world.engine([workflow], { concurrency: 10 });

  const runs = await Promise.all(Array.from({ length: 30 }, (_, n) => engine.start("many", { n })));

  const results = await Promise.all(runs.map(async ({ id }) => (await ended(engine, id)).steps.b.result));
  assert.deepEqual(results, Array.from({ length: 30 }, (_, n) => n + 1));
});

plain("commits_a_workflow_at_its_pivot", async (world) => {
  const undone = [];
  const workflow = new Workflow("pivot")
    .step("book", () => "booked", { compensate: async () => { undone.push("book"); } })
    .pivot()
    .doWhile((_ctx, iteration) => iteration < 2, (loop) => loop.step("mail", () => "sent"))
    .step("tell", () => { throw new Error("nobody listens"); }, { retry: 1 });
  const engine = world.engine([workflow]);

  const execution = await run(engine, "pivot", {});

  assert.deepEqual([execution.state, execution.rollbackStatus, undone], ["failed", "not-applicable", []]);
  assert.deepEqual(engine.listExecutions("pivot", "failed").map((found) => found.id), [execution.id]);
});
