// Measures BullMQ's delayed jobs on Redis; ../README.md has the method that all drivers share.
//
// BullMQ's documented fast settings: jobs added in bulk, several workers in parallel, together with a concurrency of 200 (its
// guide has between 100 and 300 as quite standard), and `removeOnComplete`, so that Redis keeps no done jobs. In a
// trial, one worker with the whole concurrency handed its jobs over later than these eight, and so did 16 workers.

import { createRequire } from 'node:module';
import { parseArgs } from 'node:util';
import { Queue, Worker } from 'bullmq';

const text = { type: 'string' };
const { values } = parseArgs({ options: { server: text, tasks: text, rate: text, seconds: text } });
const [tasks, rate, seconds] = [values.tasks, values.rate, values.seconds].map(Number);
const { hostname: host, port } = new URL(values.server);
// A worker waits for jobs as long as it takes: BullMQ demands that no limit be set on retries.
const connection = { host, port: Number(port), maxRetriesPerRequest: null };

const PAYLOAD_BYTES = 128;
const WARM_UP = 1000;
const BATCH = 1000;
const WORKERS = 8;
const CONCURRENCY = 25; // of each
const GIVE_UP_MS = 30_000;

// Milliseconds since 1970 with their fraction: `Date.now()` cuts it off.
const now = () => performance.timeOrigin + performance.now();
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// The data of a job is stored as JSON: with its two quotes, this is as long as it should be.
const payload = (index) => String(index).padEnd(PAYLOAD_BYTES - 2);

// Inserts tasks, then lets workers take them. `dueOf` tells how long after the first due a task is due, in whole ms.
async function phase(name, count, leadMs, dueOf) {
  const queue = new Queue(name, { connection, defaultJobOptions: { removeOnComplete: true } });
  await queue.waitUntilReady();
  const base = Math.ceil((now() + leadMs) / 1000) * 1000;

  const began = now();
  for (let from = 0; from < count; from += BATCH) {
    const jobs = [];
    for (let index = from; index < Math.min(from + BATCH, count); index++) {
      // The due is the job's own time plus its delay; giving both makes it exact.
      const timestamp = Date.now();
      const delay = base + dueOf(index) - timestamp;
      jobs.push({ name: 'due', data: payload(index), opts: { timestamp, delay } });
    }
    await queue.addBulk(jobs);
  }
  const insertMs = now() - began;
  if (now() > base - 500) {
    throw new Error(`${count} tasks took ${Math.round(insertMs)} ms to insert: some were due before`);
  }

  const starts = new Float64Array(count);
  let handled = 0;
  const handle = async (job) => {
    const at = now();
    const index = Number(job.data);
    // A task that comes twice counts once.
    if (starts[index] === 0) {
      starts[index] = at;
      handled++;
    }
  };
  const workers = [];
  for (let made = 0; made < WORKERS; made++) {
    const worker = new Worker(name, handle, { connection, concurrency: CONCURRENCY });
    worker.on('error', (error) => console.error(error.message));
    workers.push(worker);
  }

  let seen = 0;
  let progress = Math.max(now(), base);
  while (handled < count) {
    await sleep(20);
    if (handled > seen) [seen, progress] = [handled, now()];
    if (now() > Math.max(progress, base) + GIVE_UP_MS) {
      throw new Error(`${handled} of ${count} tasks were handed over, then no more`);
    }
  }
  await Promise.all(workers.map((worker) => worker.close()));
  await queue.close();
  return { insertMs, base, starts };
}

function percentiles(late) {
  late.sort();
  const round = (ms) => Math.round(ms * 1000) / 1000;
  // By nearest rank: a lateness that did occur.
  const at = (percent) => round(late[Math.max(0, Math.ceil((percent / 100) * late.length) - 1)]);
  return { p50: at(50), p90: at(90), p99: at(99), 'p99.9': at(99.9), max: at(100), min: round(late[0]) };
}

const warm = await phase('warm', WARM_UP, 2000, () => 0);
// Twice what inserting took while all was cold, and time for the worker to start.
const lead = (count) => 3000 + (2 * count * warm.insertMs) / WARM_UP;

const herd = await phase('herd', tasks, lead(tasks), () => 0);
const herdMs = herd.starts.reduce((last, start) => Math.max(last, start), 0) - herd.base;

const steadyDue = (index) => Math.floor((index * 1000) / rate);
const steady = await phase('steady', rate * seconds, lead(rate * seconds), steadyDue);
const late = steady.starts.map((start, index) => start - steady.base - steadyDue(index));

const version = createRequire(import.meta.url)('bullmq/package.json').version;
console.log(
  JSON.stringify({
    peer: 'bullmq',
    version,
    settings: `addBulk of ${BATCH}, ${WORKERS} workers of concurrency ${CONCURRENCY}, removeOnComplete`,
    inserts_per_s: Math.round((tasks / herd.insertMs) * 1000),
    throughput_per_s: Math.round((tasks / herdMs) * 1000),
    lateness_ms: percentiles(late),
    tasks,
    rate,
    seconds,
    payload_bytes: PAYLOAD_BYTES,
  }),
);
process.exit(0);
