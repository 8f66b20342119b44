/** Scenarios: jobs that wait for others. */
import { assert, gate, plain, raises, sleep, until } from "./scenario.js";

const step = (queue, name, more = {}) => ({ name, queueName: queue.name, data: {}, ...more });
const completed = (queue, id) => until(async () => (await queue.getJobState(id)) === "completed");

/** Work a queue; jobs named "bad" fail. Returns the names in the order of their starts. */
async function worked(world, queue, handler = async (job) => `of ${job.name}`) {
  const order = [];
  await world.worker(queue, async (job) => {
    order.push(job.name);
    if (job.name === "bad") throw new Error("broken child");
    return handler(job);
  });
  return order;
}

/** A parent with one child "bad" that carries a failure policy, and one "good". */
async function withBadChild(world, policy) {
  const queue = world.queue();
  const flow = await world.flows().add(step(queue, "parent", {
    opts: { attempts: 1 },
    children: [
      step(queue, "good"),
      step(queue, "bad", { opts: { attempts: 1, ...policy } }),
    ],
  }));
  const [good, bad] = flow.children.map((node) => node.job.id);
  return { queue, parent: flow.job.id, good, bad };
}

plain("works_children_before_their_parent", async (world) => {
  const queue = world.queue();
  const flow = await world.flows().add(step(queue, "root", {
    children: [
      step(queue, "left", { children: [step(queue, "leaf", { data: { n: 1 } })] }),
      step(queue, "right"),
    ],
  }));
  assert.equal(await queue.getJobState(flow.job.id), "waiting-children");
  assert.equal(await queue.getWaitingChildrenCount(), 2);

  const order = await worked(world, queue);

  await completed(queue, flow.job.id);
  assert.equal(order.length, 4);
  assert.ok(order.indexOf("leaf") < order.indexOf("left"), order);
  assert.equal(order.at(-1), "root");
});

plain("gives_a_parent_what_its_children_returned", async (world) => {
  const [parents, children] = [world.queue(), world.queue()];
  const flow = await world.flows().add(step(parents, "sum", {
    children: [1, 2, 3].map((n) => step(children, `n${n}`, { data: { n } })),
  }));
  await world.worker(children, async (job) => ({ n: job.data.n * 10 }));

  await world.worker(parents, async (job) => {
    const values = Object.values(await job.getChildrenValues());
    return values.reduce((sum, value) => sum + value.n, 0);
  });

  await completed(parents, flow.job.id);
  assert.equal((await parents.getJob(flow.job.id)).returnvalue, 60);
  const values = await parents.getChildrenValues(flow.job.id);
  assert.equal(Object.keys(values).length, 3);
  assert.ok(Object.keys(values).every((key) => key.startsWith(`${children.name}:`)), Object.keys(values));
});

plain("adds_several_flows_at_once", async (world) => {
  const queue = world.queue();
  const flow = (n) => step(queue, `parent${n}`, { children: [step(queue, `child${n}`)] });

  const nodes = await world.flows().addBulk([flow(1), flow(2)]);

  assert.deepEqual(nodes.map((node) => [node.job.name, node.children[0].job.name]),
    [["parent1", "child1"], ["parent2", "child2"]]);
  await worked(world, queue);
  for (const node of nodes) await completed(queue, node.job.id);
});

plain("adds_a_flow_all_or_nothing", async (world) => {
  const queue = world.queue();

  await raises("priority must be between -1000000 and 1000000", () => world.flows().add(step(queue, "parent", {
    children: [step(queue, "good"), step(queue, "bad", { opts: { priority: 1e9 } })],
  })));

  assert.equal(await queue.countAsync(), 0);
  assert.equal(await queue.getWaitingChildrenCount(), 0);
});

plain("works_a_chain_step_by_step", async (world) => {
  const queue = world.queue();
  const flows = world.flows();
  const { jobIds } = await flows.addChain(["fetch", "process", "store"].map((name) => step(queue, name)));
  assert.deepEqual(await Promise.all(jobIds.map((id) => queue.getJobState(id))),
    ["waiting", "waiting-children", "waiting-children"]);

  const order = await worked(world, queue, async (job) => {
    const before = job.data.__flowParentId;
    return [...(before ? await flows.getParentResult(before) : []), job.name];
  });

  await completed(queue, jobIds[2]);
  assert.deepEqual(order, ["fetch", "process", "store"]);
  assert.deepEqual(await flows.getParentResult(jobIds[2]), ["fetch", "process", "store"]);
});

plain("brings_parallel_jobs_together", async (world) => {
  const queue = world.queue();
  const flows = world.flows();
  const { parallelIds, finalId } = await flows.addBulkThen(
    [1, 2, 3, 4].map((n) => step(queue, `part${n}`, { data: { n } })), step(queue, "merge"));

  const order = await worked(world, queue, async (job) => {
    if (job.name !== "merge") return job.data.n;
    const results = await flows.getParentResults(parallelIds);
    return [...results.values()];
  });

  await completed(queue, finalId);
  assert.equal(order.at(-1), "merge");
  assert.deepEqual((await queue.getJob(finalId)).returnvalue, [1, 2, 3, 4]);
});

plain("works_a_tree_from_its_root", async (world) => {
  const queue = world.queue();
  const { jobIds } = await world.flows().addTree(step(queue, "root", {
    children: [step(queue, "left", { children: [step(queue, "leaf")] }), step(queue, "right")],
  }));

  const order = await worked(world, queue);

  for (const id of jobIds) await completed(queue, id);
  assert.equal(order[0], "root");
  assert.ok(order.indexOf("left") < order.indexOf("leaf"), order);
});

plain("reads_a_flow_back", async (world) => {
  const queue = world.queue();
  const flows = world.flows();
  const added = await flows.add(step(queue, "root", {
    data: { n: 0 },
    children: [step(queue, "a", { children: [step(queue, "leaf")] }), step(queue, "b")],
  }));
  const opts = { id: added.job.id, queueName: queue.name };

  const whole = await flows.getFlow(opts);
  assert.deepEqual([whole.job.name, whole.job.data], ["root", { n: 0 }]);
  assert.deepEqual(whole.children.map((node) => node.job.name), ["a", "b"]);
  assert.equal(whole.children[0].children[0].job.name, "leaf");
  assert.equal((await flows.getFlow({ ...opts, depth: 1 })).children[0].children, undefined);
  assert.equal((await flows.getFlow({ ...opts, maxChildren: 1 })).children.length, 1);
  assert.equal(await flows.getFlow({ id: "nobody", queueName: queue.name }), null);
});

plain("applies_options_by_queue_to_a_flow", async (world) => {
  const queue = world.queue();

  const flow = await world.flows().add(
    step(queue, "parent", { children: [step(queue, "child", { opts: { attempts: 2 } })] }),
    { queuesOptions: { [queue.name]: { attempts: 9, priority: 3 } } });

  const [parent, child] = [await queue.getJob(flow.job.id), await queue.getJob(flow.children[0].job.id)];
  assert.deepEqual([parent.opts.attempts, child.opts.attempts, child.priority], [9, 2, 3]);
});

plain("counts_what_a_parent_waits_for", async (world) => {
  const queue = world.queue();
  const flow = await world.flows().add(step(queue, "parent", {
    children: [step(queue, "one"), step(queue, "two")],
  }));
  assert.deepEqual(await queue.getJobDependenciesCount(flow.job.id), { processed: 0, unprocessed: 2 });
  const hand = await world.hand(queue);
  const { id, token } = await hand.getNextJob();
  await queue.moveJobToCompleted(id, "done", token);

  const { processed, unprocessed } = await queue.getJobDependencies(flow.job.id);

  assert.deepEqual(Object.values(processed), ["done"]);
  assert.equal(unprocessed.length, 1);
  assert.deepEqual(await queue.getJobDependenciesCount(flow.job.id), { processed: 1, unprocessed: 1 });
});

plain("fails_a_parent_with_its_child_if_asked", async (world) => {
  const { queue, parent, bad } = await withBadChild(world, { failParentOnFailure: true });

  await worked(world, queue);

  await until(async () => (await queue.getJobState(parent)) === "failed");
  assert.equal(await queue.getJobState(bad), "failed");
});

plain("goes_on_without_a_failed_child_that_is_ignored", async (world) => {
  const { queue, parent, bad } = await withBadChild(world, { ignoreDependencyOnFailure: true });
  let ignored;

  await worked(world, queue, async (job) => {
    if (job.name === "parent") ignored = await job.getIgnoredChildrenFailures();
  });

  await completed(queue, parent);
  assert.deepEqual(Object.values(ignored), ["broken child"]);
  assert.ok(Object.keys(ignored)[0].includes(bad), Object.keys(ignored));
});

plain("goes_on_at_once_when_a_child_fails_if_asked", async (world) => {
  const { queue, parent } = await withBadChild(world, { continueParentOnFailure: true });
  let failures;

  await worked(world, queue, async (job) => {
    if (job.name === "parent") failures = await job.getFailedChildrenValues();
  });

  await completed(queue, parent);
  assert.deepEqual(Object.values(failures), ["broken child"]);
});

plain("forgets_a_failed_child_if_asked", async (world) => {
  const { queue, parent, good } = await withBadChild(world, { removeDependencyOnFailure: true });
  let values;

  await worked(world, queue, async (job) => {
    if (job.name !== "parent") return "of a child";
    values = await job.getChildrenValues();
    return "of the parent";
  });

  await completed(queue, parent);
  assert.deepEqual(Object.values(values), ["of a child"]);
  assert.ok(Object.keys(values)[0].includes(good), Object.keys(values));
});

plain("holds_a_parent_whose_child_failed", async (world) => {
  const { queue, parent, bad } = await withBadChild(world, {});
  await worked(world, queue);
  await until(async () => (await queue.getJobState(bad)) === "failed");
  await sleep(200);

  assert.equal(await queue.getJobState(parent), "waiting-children");
});

plain("frees_a_parent_from_a_child", async (world) => {
  const queue = world.queue();
  const flow = await world.flows().add(step(queue, "parent", {
    children: [step(queue, "child", { opts: { delay: 60_000 } })],
  }));

  assert.equal(await flow.children[0].job.removeChildDependency(), true);

  await until(async () => (await queue.getJobState(flow.job.id)) === "waiting");
});

plain("removes_children_that_were_not_worked_yet", async (world) => {
  const queue = world.queue();
  const flow = await world.flows().add(step(queue, "parent", {
    children: [step(queue, "one"), step(queue, "two")],
  }));
  const hand = await world.hand(queue);
  const { id, token } = await hand.getNextJob();
  await queue.moveJobToCompleted(id, 1, token);

  await flow.job.removeUnprocessedChildren();

  const other = flow.children.map((node) => node.job.id).find((child) => child !== id);
  assert.equal(await queue.getJobState(other), "unknown");
  assert.equal(await queue.getJobState(id), "completed");
});

plain("lets_a_waiting_job_wait_for_a_late_child", async (world) => {
  const queue = world.queue();
  const parent = await queue.add("parent", {});
  await queue.add("child", {}, { parent: { id: parent.id, queue: queue.name } });
  assert.equal(await queue.getJobState(parent.id), "waiting-children");

  const order = await worked(world, queue);

  await completed(queue, parent.id);
  assert.deepEqual(order, ["child", "parent"]);
  await raises(`Parent job ${parent.id} is not linkable`, () =>
    queue.add("late", {}, { parent: { id: parent.id, queue: queue.name } }));
});

plain("lets_a_parent_wait_again_for_the_rest", async (world) => {
  const queue = world.queue();
  const events = await world.events(queue);
  const flow = await world.flows().add(step(queue, "parent", {
    children: [
      step(queue, "bad", { opts: { attempts: 1, continueParentOnFailure: true } }),
      step(queue, "rest", { opts: { delay: 3_600_000 } }),
    ],
  }));
  const [parent, rest] = [flow.job.id, flow.children[1].job.id];
  const order = await worked(world, queue, async (job) => {
    if (job.name === "rest") return "of the rest";
    if (Object.keys(await job.getChildrenValues()).length > 0) return "complete";
    await job.moveToWaitingChildren(job.token);
  });
  await until(() => events.named("waiting-children").some((said) => said.jobId === parent));

  await queue.promoteJob(rest);

  await completed(queue, rest);
  if (world.reference) {
    assert.equal(await queue.getJobState(parent), "waiting-children");
  } else {
    await completed(queue, parent);
    assert.deepEqual(order, ["bad", "parent", "rest", "parent"]);
  }
});

plain("works_a_wide_fan_in", async (world) => {
  const queue = world.queue();
  const merged = gate();
  const { parallelIds, finalId } = await world.flows().addBulkThen(
    Array.from({ length: 300 }, (_, n) => step(queue, "part", { data: { n } })), step(queue, "merge"));

  await world.worker(queue, async (job) => {
    if (job.name === "merge") merged.open(await queue.getCompletedCount());
  }, { concurrency: 20, batchSize: 50 });

  assert.equal(await merged.opened, parallelIds.length);
  await completed(queue, finalId);
});

plain("lists_what_a_parent_waits_for", async (world) => {
  const queue = world.queue();
  const flow = await world.flows().add(step(queue, "parent", {
    children: [1, 2, 3].map((n) => step(queue, `child${n}`)),
  }));
  const hand = await world.hand(queue);
  const { id, token } = await hand.getNextJob();
  await queue.moveJobToCompleted(id, { done: true }, token);

  const parents = await queue.getWaitingChildren();
  assert.deepEqual(parents.map((job) => job.id), [flow.job.id]);
  const all = await queue.getDependencies(flow.job.id);
  assert.equal(all.unprocessed.length, 2);
  assert.deepEqual(Object.values(all.processed), [{ done: true }]);
  assert.equal((await queue.getDependencies(flow.job.id, "unprocessed", 0, 0)).unprocessed.length, 1);
  const job = await queue.getJob(flow.children[1].job.id);
  assert.deepEqual([job.parent?.id, job.parentKey], [flow.job.id, `${queue.name}:${flow.job.id}`]);
});
