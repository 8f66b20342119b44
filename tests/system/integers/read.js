/** Print what the JavaScript client sees of jobs: read.js PORT QUEUE ID... */
import { Queue, Worker } from "bunqueue/client";

const [port, name, ...ids] = process.argv.slice(2);
const connection = { host: "127.0.0.1", port: Number(port) };
const kinds = new Set();

/** Note the kind of every value in a payload. */
function look(value) {
  if (value !== null && typeof value === "object") Object.values(value).forEach(look);
  else kinds.add(typeof value);
}

const queue = new Queue(name, { connection });
for (const id of ids) {
  const job = await queue.getJob(id);
  look([job.data, job.returnvalue, job.timestamp, job.delay]);
}
const pulled = await new Promise((resolve) => {
  const worker = new Worker(name, async (job) => { resolve(job.data); return job.data; }, {
    connection, pollTimeout: 200,
  });
  worker.on("completed", () => worker.close());
});
look(pulled);
console.log(JSON.stringify({ kinds: [...kinds].sort(), pulled }));
await queue.close();
process.exit(0);
