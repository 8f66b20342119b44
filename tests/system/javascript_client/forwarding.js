/** Scenarios: jobs of one queue are handed on to another broker. */
import { Queue, shutdownManager } from "bunqueue/client";
import { assert, plain, until } from "./scenario.js";

plain("forwards_jobs_to_another_queue", async (world) => {
  const [edge, central] = [world.queue(), world.queue()];
  const sent = [];
  const forwarder = edge.forward({ to: world.connection(), queue: central.name, durable: true });
  forwarder.on("forwarded", (info) => sent.push(info));
  world.later(() => forwarder.close());

  const { id } = await edge.add("reading", { celsius: 21 }, { priority: 5 });

  await until(async () => (await edge.getJobState(id)) === "completed");
  const remoteId = `fwd:${edge.name}:${id}`;
  assert.deepEqual(sent, [{ id, remoteId, name: "reading" }]);
  const job = await central.getJob(remoteId);
  assert.deepEqual([job.name, job.data, job.priority], ["reading", { celsius: 21 }, 5]);
});

plain("forwards_a_job_once_however_often_it_is_tried", async (world) => {
  const [edge, central] = [world.queue(), world.queue()];
  const { id } = await edge.add("x", { n: 1 });
  await central.add("x", { n: 1 }, { jobId: `fwd:${edge.name}:${id}` });

  const forwarder = edge.forward({ to: world.connection(), queue: central.name });
  world.later(() => forwarder.close());

  await until(async () => (await edge.getJobState(id)) === "completed");
  assert.equal(await central.countAsync(), 1);
});

plain("keeps_jobs_that_could_not_be_forwarded", async (world) => {
  const edge = world.queue();
  const errors = [];
  const forwarder = edge.forward({
    to: { host: "127.0.0.1", port: 1, commandTimeout: 200, poolSize: 1 }, queue: "far",
  });
  forwarder.on("error", (error) => errors.push(error));
  world.later(() => forwarder.close());

  const { id } = await edge.add("x", { n: 1 }, { attempts: 2, backoff: 10 });

  await until(async () => (await edge.getJobState(id)) === "failed");
  await until(() => errors.length >= 2);
  assert.deepEqual((await edge.getDlqAsync())[0].job.data, { n: 1 });
});

plain("forwards_many_jobs_side_by_side", async (world) => {
  const [edge, central] = [world.queue(), world.queue()];
  await edge.addBulk(Array.from({ length: 60 }, (_, n) => ({ name: "n", data: { n } })));

  const forwarder = edge.forward({ to: world.connection(), queue: central.name, concurrency: 8 });
  world.later(() => forwarder.close());

  await until(async () => (await central.countAsync()) === 60);
  const jobs = await central.getWaitingAsync(0, 100);
  assert.deepEqual(jobs.map((job) => job.data.n).sort((a, b) => a - b), Array.from({ length: 60 }, (_, n) => n));
});

plain("forwards_from_a_file_at_the_edge", async (world) => {
  const dataPath = `${world.directory()}/edge.db`;
  const edge = new Queue("edge", { embedded: true, dataPath });
  const central = world.queue();
  const forwarder = edge.forward({ to: world.connection(), queue: central.name });
  world.later(() => shutdownManager());
  world.later(() => forwarder.close());

  const { id } = await edge.add("reading", { celsius: -3 });

  const job = await until(() => central.getJob(`fwd:edge:${id}`));
  assert.deepEqual([job.name, job.data], ["reading", { celsius: -3 }]);
});
