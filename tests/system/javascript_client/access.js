/** Scenarios: tokens and TLS. */
import { FlowProducer, Queue } from "bunqueue/client";
import { assert, auth, plain, raises, tls, until } from "./scenario.js";

auth("a_good_token_opens_everything", async (world) => {
  for (const token of ["first", "second"]) {
    const queue = world.queue({ connection: { token } });
    const { id } = await queue.add("x", { n: 1 });
    assert.deepEqual((await queue.getJob(id)).data, { n: 1 });
  }
});

auth("a_bad_token_is_refused", async (world) => {
  const queue = world.queue({ connection: { token: "third", commandTimeout: 2_000 } });

  await raises("Connection lost", () => queue.add("x", {}));

  const good = world.queue({ name: queue.name, connection: { token: "first" } });
  assert.equal(await good.countAsync(), 0);
});

auth("no_token_is_refused", async (world) => {
  const queue = world.queue({ connection: { commandTimeout: 2_000 } });
  await raises("Not authenticated", () => queue.add("x", {}));
});

auth("a_worker_with_a_token_works", async (world) => {
  const connection = { token: "first" };
  const queue = world.queue({ connection });
  const events = await world.events(queue, { connection: { token: "second" } });
  const { id } = await queue.add("x", {});

  await world.worker(queue, async () => "let in", { connection: { token: "second" } });

  await until(() => events.named("completed").length === 1);
  assert.deepEqual(events.named("completed"), [{ jobId: id, returnvalue: "let in" }]);
});

auth("a_listener_with_a_bad_token_is_refused", async (world) => {
  await raises("Authentication failed", () => world.events(world.fresh(), { connection: { token: "third" } }));
});

auth("a_flow_with_a_token_is_admitted", async (world) => {
  const queue = world.queue({ connection: { token: "first" } });
  const flows = new FlowProducer({ connection: world.connection({ token: "first" }) });
  world.later(() => flows.close());

  const { jobIds } = await flows.addChain([
    { name: "a", queueName: queue.name, data: {} }, { name: "b", queueName: queue.name, data: {} },
  ]);

  assert.equal(await queue.getJobState(jobIds[1]), "waiting-children");
});

plain("a_stray_token_is_reported", async (world) => {
  const queue = world.queue({ connection: { token: "nobody asked", commandTimeout: 2_000 } });
  await raises("Connection lost", () => queue.add("x", {}));
});

tls("works_over_tls", async (world) => {
  const queue = world.queue();
  const events = await world.events(queue);
  const { id } = await queue.add("secret", { body: "x".repeat(200_000) });

  await world.worker(queue, async (job) => job.data.body.length);

  await until(() => events.named("completed").length === 1);
  assert.deepEqual(events.named("completed"), [{ jobId: id, returnvalue: 200_000 }]);
});

tls("refuses_a_certificate_of_unknown_origin", async (world) => {
  const queue = world.queue({ connection: { tls: true, commandTimeout: 1_000 } });
  await raises("Connection lost", () => queue.add("x", {}));
});

tls("trusts_blindly_if_told_so", async (world) => {
  const queue = world.queue({ connection: { tls: { rejectUnauthorized: false } } });
  const { id } = await queue.add("x", {});
  assert.equal(await queue.getJobState(id), "waiting");
});

tls("gets_no_answer_in_plain_text_from_a_tls_port", async (world) => {
  const { host, port } = world.address;
  const queue = new Queue("plain", { connection: { host, port, poolSize: 1, commandTimeout: 1_000 } });
  world.later(() => queue.close());
  await raises("Connection lost", () => queue.add("x", {}));
});
