// The sections of the report, one for each bench: which rows stand in its table, and under which titles.

import { over, reports, value } from './results.mjs';
import { median, number, spread } from './words.mjs';

const sinkName = { redis: 'Redis Streams', kafka: 'Kafka', nats: 'JetStream', rabbitmq: 'RabbitMQ' };
const peerName = { bullmq: 'BullMQ', asynq: 'Asynq', nats: 'NATS schedules', 'db-scheduler': 'db-scheduler' };
export const nameOf = (peer) => peerName[peer] ?? peer;

// What a row is of: `Kafka, recurring`.
export function subject(results, row) {
  const report = reports(results, row)[0];
  const sink = sinkName[report && value(report, 'sink')] ?? '';
  return [sink, report && value(report, 'recurring') && 'recurring'].filter(Boolean).join(', ');
}

// A line of a table from a row, with the figures by their titles.
const line = (results, row, first, figures) => ({
  ...first,
  ...Object.fromEntries(Object.entries(figures).map(([title, [of, show]]) => [title, show(over(results, row, of))])),
});

const dueMoment = {
  'Redis us': ['redis_us', median],
  'scripts us': ['script_us', median],
  'loop us': ['floor_us', median],
  'scripts to loop': ['scripts_to_floor', spread],
  'instance us': ['instance_us', median],
  'raw us': ['raw_cpu_us', median],
  'instance to raw': ['instance_cpu_to_raw', spread],
};

// The numbers N of figures like `pending_N_bytes`.
const numbersIn = (results, row, pattern) => {
  const names = reports(results, row).flatMap(({ figures }) => Object.keys(figures));
  return [...new Set(names.flatMap((name) => name.match(pattern)?.[1] ?? []))].sort((a, b) => a - b);
};

export const sections = [
  {
    title: 'Throughput',
    of: /^throughput-/,
    about:
      'Tasks that are all due at one moment. `raw` is the sink alone, `alone` the baseline loop in Redis alone, `limit`' +
      ' one after the other; `Redis` is its whole CPU time, `scripts` how long it is in scripts of instances while' +
      ' the baseline loop works beside them, `loop` how long in that one.',
    plots: [['throughput', 'Tasks published each second, beside other schedulers']],
    columns: (results, row) => [
      line(
        results,
        row,
        { sink: subject(results, row) },
        {
          'tasks/s': ['tasks_per_second', spread],
          'raw/s': ['raw_per_second', median],
          'alone/s': ['alone_per_second', median],
          'limit/s': ['limit_per_second', median],
          'to limit': ['throughput_to_limit', spread],
          ...dueMoment,
        },
      ),
    ],
  },
  {
    title: 'Lateness',
    of: /^lateness-/,
    about:
      "1000 tasks each second, evenly spread: ms from the due, on Redis' time, to the consumer; `loop` is the baseline timer" +
      ' loop, which sleeps until the due, claims, publishes and writes back; it has every other tenth of a second.',
    plots: [
      ['percentiles', 'Percentiles of lateness for each sink, beside the baseline loop'],
      ['lateness', 'How late tasks are at 1000 each second, beside other schedulers'],
    ],
    columns: (results, row) => [
      line(
        results,
        row,
        { sink: subject(results, row) },
        {
          p50: ['p50_ms', spread],
          p99: ['p99_ms', spread],
          'p99.9': ['p999_ms', spread],
          max: ['max_ms', spread],
          min: ['min_ms', spread],
          'loop p50': ['floor_p50_ms', median],
          'loop p99': ['floor_p99_ms', spread],
          'loop p99.9': ['floor_p999_ms', spread],
          'p50 to loop': ['p50_to_floor', spread],
          'p99 to loop': ['p99_to_floor', spread],
          'p99.9 to loop': ['p999_to_floor', spread],
        },
      ),
    ],
  },
  {
    title: 'Herd',
    of: /^herd-/,
    about:
      'Due in the same millisecond, while another lane goes on with 100 tasks a second: how late that lane was, before' +
      ' and meanwhile.',
    plots: [],
    columns: (results, row) => [
      line(
        results,
        row,
        { sink: subject(results, row) },
        {
          tasks: ['tasks', median],
          'last, ms': ['last_ms', spread],
          'to limit': ['throughput_to_limit', spread],
          ...dueMoment,
          'lane p99 before': ['calm_p99_ms', median],
          'lane p99 meanwhile': ['meanwhile_p99_ms', spread],
        },
      ),
    ],
  },
  {
    title: 'Instances',
    of: /^instances$/,
    about: 'Cron tasks that are all due at one second, on Redis Streams.',
    plots: [],
    columns: (results, row) =>
      numbersIn(results, row, /^with_(\d+)_last_ms$/).map((count) =>
        line(
          results,
          row,
          { instances: count },
          {
            'last, ms': [`with_${count}_last_ms`, spread],
            'Redis us': [`with_${count}_redis_us`, spread],
            'instances us': [`with_${count}_instance_us`, spread],
          },
        ),
      ),
  },
  {
    title: 'Pending',
    of: /^pending/,
    about:
      'What an occurrence costs beside many that are not due, as in throughput (the baseline loop has nothing else to look' +
      ' into), and the memory of each; `growing` is taken while the tables of Redis still grow. Then a restart that' +
      ' finds 100 000 recurring tasks overdue: how late is what comes due meanwhile.',
    plots: [['pending', 'Time of Redis to the baseline loop, and bytes of a task, over how many are pending']],
    columns: (results, row) =>
      numbersIn(results, row, /^pending_(\d+)_bytes$/).map((count) =>
        line(
          results,
          row,
          { pending: `${number(Number(count))}, of \`${row}\`` },
          {
            'tasks/s': [`pending_${count}_tasks_per_second`, median],
            'Redis us': [`pending_${count}_redis_us`, spread],
            'scripts us': [`pending_${count}_script_us`, median],
            'loop us': [`pending_${count}_floor_us`, median],
            'claim p50, ms': [`pending_${count}_claim_p50_ms`, median],
            'claim max, ms': [`pending_${count}_claim_max_ms`, spread],
            bytes: [`pending_${count}_bytes`, median],
            growing: [`pending_${count}_bytes_growing`, median],
            'beside record': [`pending_${count}_bytes_beside_record`, spread],
            'restart p99, ms': ['storm_fresh_p99_ms', spread],
          },
        ),
      ),
  },
  {
    title: 'Put',
    of: /^put/,
    about:
      "Tasks put over HTTP, beside the timeline's put alone; what the instance's memory grew by while it took a batch.",
    plots: [],
    columns: (results, row) =>
      ['put_1', 'put_16', 'batch_1', 'batch_16'].map((way) => {
        const [how, connections] = way.split('_');
        const first = { put: `${how === 'put' ? 'one by one' : 'a batch'}, ${connections} connection(s), \`${row}\`` };
        return line(results, row, first, {
          'tasks/s': [`${way}_per_second`, spread],
          'alone/s': ['floor_per_second', median],
          'instance us': [`${way}_instance_us`, median],
          'grew, MiB': [`${way}_grew_mib`, spread],
        });
      }),
  },
  {
    title: 'Idle',
    of: /^idle$/,
    about: 'What an instance of eight lanes asks of Redis, on four shards, while nothing is due.',
    plots: [],
    columns: (results, row) => [
      line(
        results,
        row,
        { instances: median(over(results, row, 'instances')) },
        {
          'requests/s for a shard': ['requests_per_instance_and_shard', spread],
          'requests/s': ['requests_per_second', spread],
          'Redis, ms/s': ['redis_cpu_ms_per_second', spread],
          'instance, ms/s': ['instance_cpu_ms_per_second', spread],
        },
      ),
    ],
  },
  {
    title: 'Fleet',
    of: /^fleet$/,
    about: 'What several instances cost at 1000 tasks each second, on 64 shards of one Redis, and how late they are.',
    plots: [],
    columns: (results, row) =>
      numbersIn(results, row, /^with_(\d+)_calls_per_second$/).map((count) =>
        line(
          results,
          row,
          { instances: count },
          {
            'scripts/s': [`with_${count}_calls_per_second`, spread],
            'p50, ms': [`with_${count}_p50_ms`, median],
            'p99, ms': [`with_${count}_p99_ms`, spread],
            'max, ms': [`with_${count}_max_ms`, spread],
          },
        ),
      ),
  },
  {
    title: 'Death',
    of: /^death$/,
    about:
      'Some of five instances are killed at 1000 tasks each second: how late everything is from then on, but for what' +
      ' the killed held.',
    plots: [],
    columns: (results, row) =>
      numbersIn(results, row, /^killed_(\d+)_max_ms$/).map((count) =>
        line(
          results,
          row,
          { killed: count },
          {
            held: [`killed_${count}_held_count`, median],
            'p99, ms': [`killed_${count}_p99_ms`, spread],
            'max, ms': [`killed_${count}_max_ms`, spread],
          },
        ),
      ),
  },
  {
    title: 'Cluster',
    of: /^cluster$/,
    about: 'What an occurrence costs in a Redis Cluster, all masters together.',
    plots: [],
    columns: (results, row) =>
      numbersIn(results, row, /^with_(\d+)_script_us$/).map((count) =>
        line(
          results,
          row,
          { masters: count },
          {
            'scripts us': [`with_${count}_script_us`, spread],
            'Redis us': [`with_${count}_redis_us`, spread],
            'instance us': [`with_${count}_instance_us`, median],
            'a core, tasks/s': [`with_${count}_per_second_and_core`, median],
          },
        ),
      ),
  },
  {
    title: 'Silence',
    of: /^silence$/,
    about: 'One of three masters is stopped for two thirds of the time: what the shards of the others notice of it.',
    plots: [],
    columns: (results, row) => [
      line(
        results,
        row,
        { 'silent, s': median(over(results, row, 'silent_s')) },
        {
          'p99 before, ms': ['before_p99_ms', median],
          'p99 beside, ms': ['beside_p99_ms', spread],
          'max beside, ms': ['beside_max_ms', spread],
          'puts refused': ['put_refused_count', spread],
          'longest put, ms': ['put_max_ms', spread],
        },
      ),
    ],
  },
];
