// The budgets: what is asked of which rows. Each is judged by the median of the rounds; one with `always`, by the worst
// round.
//
// `strict`: no profile excuses a miss.
// `of` is a figure or ratio, or a pattern of several; `limit` what cannot be bettered in the same run, with its words.
// `ratio` is the ratio for the same budget; unlike the figure `of`, it can be compared between machines.
// `or` is an alternative: on a slow or busy machine a budget in ms says nothing, the ratio to the baseline loop does.
// `floor` in the name of a figure is the baseline loop; in `put` it is the timeline's put alone.

import { names, over, peer, reports } from './results.mjs';

const due = /^(throughput|herd)-/;
const LOOP = 'the baseline loop of the same run';
const loop = (percentile, name) => ({
  or: { of: `${name}_to_floor`, most: 2, words: `2 x ${LOOP}` },
  limit: [`${percentile} of the baseline loop, ms`, `floor_${name}_ms`],
});
const atLimit = ['ms at the limit of the same run', (get) => (get('tasks') / get('limit_per_second')) * 1000];

export const budgets = [
  {
    id: 'redis-cpu',
    strict: true,
    words: 'time of Redis in scripts of instances for an occurrence, to the baseline loop side by side',
    short: 'Redis CPU',
    rows: due,
    of: 'scripts_to_floor',
    most: 1.3,
    limit: ['us in Redis of the baseline loop', 'floor_us'],
  },
  {
    id: 'instance-cpu',
    words: 'CPU of the instance for an occurrence, to the raw client',
    short: 'instance CPU',
    rows: due,
    of: 'instance_cpu_to_raw',
    most: 2,
    limit: ['CPU of the raw client, us', 'raw_cpu_us'],
  },
  {
    id: 'throughput',
    words: 'throughput, to 1 / (1 / raw sink + 1 / baseline loop)',
    short: 'throughput',
    rows: due,
    of: 'throughput_to_limit',
    least: 0.75,
    limit: ['tasks/s of both parts one after the other', 'limit_per_second'],
  },
  {
    id: 'bullmq',
    words: 'throughput with Redis Streams or Kafka, to BullMQ',
    short: '5 x BullMQ',
    rows: /^throughput-(redis|kafka)/,
    of: 'tasks_per_second',
    per: (results) => peer(results, 'bullmq')?.throughput_per_s,
    least: 5,
    limit: ['tasks/s of both parts one after the other', 'limit_per_second'],
  },
  {
    id: 'p50',
    words: 'lateness p50 at 1000/s, ms',
    short: 'p50',
    rows: /^lateness-/,
    of: 'p50_ms',
    most: 1.2,
    ...loop('p50', 'p50'),
  },
  {
    id: 'p99',
    words: 'lateness p99 at 1000/s, ms',
    short: 'p99',
    rows: /^lateness-/,
    of: 'p99_ms',
    most: 3,
    ...loop('p99', 'p99'),
  },
  {
    id: 'p99.9',
    words: 'lateness p99.9 at 1000/s, ms',
    short: 'p99.9',
    rows: /^lateness-/,
    of: 'p999_ms',
    most: 15,
    ...loop('p99.9', 'p999'),
  },
  {
    id: 'early',
    strict: true,
    words: 'occurrences that came early, in any round',
    short: 'early',
    rows: /^lateness-/,
    of: 'early_count',
    most: 0,
    always: true,
  },
  {
    id: 'herd',
    words: '100 000 due in one millisecond: the last accepted, ms',
    short: 'last one',
    rows: /^herd-(redis|kafka)(-recurring)?$/,
    of: 'last_ms',
    most: 1000,
    limit: atLimit,
  },
  {
    id: 'herd-lane',
    words: 'another lane of the same sink meanwhile: lateness p99, ms',
    short: 'lane p99',
    rows: /^herd-/,
    of: 'meanwhile_p99_ms',
    most: 50,
    limit: ['p99 of that lane before, ms', 'calm_p99_ms'],
  },
  {
    id: 'instances',
    words: '10 000 cron tasks, with 1, 5 and 20 instances: the last accepted, ms',
    short: 'last one',
    rows: /^instances$/,
    of: /^with_\d+_last_ms$/,
    most: 1000,
    limit: atLimit,
  },
  {
    id: 'instances-cpu',
    words: 'CPU of Redis for an occurrence with 20 instances, to that with one',
    short: 'Redis CPU with 20',
    rows: /^instances$/,
    of: 'redis_cpu_last_to_first',
    most: 1.5,
    limit: ['CPU of Redis with one instance, us', 'with_1_redis_us'],
  },
  {
    id: 'pending-cpu',
    strict: true,
    words: 'time of Redis for an occurrence beside 10 M pending, to that beside 100 k, each to the baseline loop side by side',
    short: 'cost at 10 M',
    rows: /^pending(-recurring-10m)?$/,
    of: 'scripts_to_floor_last_to_first',
    most: 1.5,
    limit: ['us in Redis beside 100 k', 'pending_100000_script_us'],
  },
  {
    id: 'pending-bytes',
    strict: true,
    words: 'bytes in Redis for a pending task, beside its record',
    short: 'bytes',
    rows: /^pending/,
    of: /^pending_10000000_bytes_beside_record$/,
    most: 220,
    limit: ['bytes of the record', 'record_bytes'],
  },
  {
    id: 'storm',
    words: 'a restart finds 100 000 recurring tasks overdue: lateness p99 of what comes due meanwhile, ms',
    short: 'restart p99',
    rows: /^pending/,
    of: 'storm_fresh_p99_ms',
    most: 50,
  },
  {
    id: 'put',
    words: 'tasks/s put over HTTP, in a batch by one connection',
    short: 'batch',
    rows: /^put/,
    of: 'batch_1_per_second',
    ratio: 'batch_to_floor',
    least: 100_000,
    limit: ["tasks/s by the timeline's put alone", 'floor_per_second'],
  },
  {
    id: 'idle',
    strict: true,
    words: 'requests to Redis each second for an instance and shard, while nothing is due',
    short: 'requests',
    rows: /^idle$/,
    of: 'requests_per_instance_and_shard',
    most: 1.2,
    limit: ['the look once a second', () => 1],
  },
  {
    id: 'door',
    words: 'tasks/s that a door puts from messages, to 1 / (1 / consumer + 1 / batch)',
    short: 'door',
    rows: /^door-/,
    of: 'door_to_limit',
    least: 0.75,
    limit: ['tasks/s of both parts one after the other', 'limit_per_second'],
  },
  {
    id: 'door-cpu',
    words: 'CPU of the instance for a message of a door, to consumer and batch together',
    short: 'door CPU',
    rows: /^door-/,
    of: 'door_cpu_to_alone',
    most: 1.3,
    limit: ['CPU of the consumer, us', 'consumer_cpu_us'],
  },
  {
    id: 'door-stored',
    words: 'from the sending of a message to its task at 1000/s, p99, ms',
    short: 'stored p99',
    rows: /^door-/,
    of: 'stored_p99_ms',
    most: 25,
  },
  {
    id: 'fleet',
    words: 'scripts that 20 instances send to Redis at 1000/s, to those of one',
    short: '20 instances',
    rows: /^fleet$/,
    of: 'calls_last_to_first',
    most: 2.2,
    limit: ['scripts each second with one instance', 'with_1_calls_per_second'],
  },
  {
    id: 'death-one',
    words: 'one of five instances is killed: lateness of what it did not hold, max, ms',
    short: 'one dies',
    rows: /^death$/,
    of: 'killed_1_max_ms',
    most: 50,
  },
  {
    id: 'death-two',
    words: 'two of five instances are killed: lateness of what they did not hold, max, ms',
    short: 'two die',
    rows: /^death$/,
    of: 'killed_2_max_ms',
    most: 1300,
  },
  {
    id: 'cluster',
    words: 'time of all masters in scripts for an occurrence with six masters, to that with one',
    short: 'six masters',
    rows: /^cluster$/,
    of: 'scripts_last_to_first',
    most: 1.1,
    limit: ['us in scripts with one master', 'with_1_script_us'],
  },
  {
    id: 'silence',
    words: 'one of three masters is silent: p99 of lateness of the others, minus that before, ms',
    short: 'silent master',
    rows: /^silence$/,
    of: 'p99_later_ms',
    most: 20,
  },
  {
    id: 'silence-put',
    strict: true,
    words: 'puts to the other masters meanwhile that were not answered with success, in any round',
    short: 'refused puts',
    rows: /^silence$/,
    of: 'put_refused_count',
    most: 0,
    always: true,
  },
];

// What limits a figure, in words, for people to write once they know: by a section of the report (`throughput`), or by
// a row (`throughput-kafka`); a text or a list of them.
export const limits = {
  throughput: [
    'Broker, Redis, instance and the bench itself share the cores: above the limit the parts overlap, below it they wait' +
      ' for each other.',
    'CPU of the instance with Redis Streams and RabbitMQ: nine tenths are spent outside punctual\'s own code' +
      ' ([profiles](profiles)), in sockets, memory and copies, and in the parsers of the clients. The raw client writes a' +
      ' message and reads an answer; the instance besides reads a record from Redis, makes a message of it, and writes its' +
      ' end back. Where the raw client takes little, as with Redis Streams, that is more than as much again.',
    'RabbitMQ\'s raw client is lapin, as in the sink. RabbitMQ is the limit of throughput.',
  ],
  herd: [
    'With Kafka, the broker: 100 000 messages take its own client 0.8 to 1 s on these cores, and what the other' +
      ' lane publishes stands in line behind them.',
  ],
  lateness: ['The baseline loop of the same run: with Kafka and RabbitMQ it is the broker that answers late.'],
  pending: [
    'Bytes beside the record go up and down with how full the tables of Redis are: they double at powers of two, and' +
      ' just after that each task pays for twice the buckets.',
  ],
  put: ["The timeline's put alone, one connection to Redis: each shard takes its tasks one call after the other."],
};

// Whether less of a ratio is worse: a budget asks for at least so much. Of the others more is.
export const lessIsWorse = (ratio) =>
  budgets.some((budget) => budget.least !== undefined && [budget.of, budget.ratio].includes(ratio));

const met = (statistics, { most, least, always }) => {
  const judged = always ? statistics.max : statistics.median;
  return most === undefined ? judged >= least : judged <= most;
};
// How far it is used up: above 1 it is missed.
const used = ({ median, max }, { most, least, always }) => {
  const judged = always ? max : median;
  return most === undefined ? least / judged : judged === 0 ? 0 : judged / most;
};

export const target = ({ most, least, or }) => {
  const bound = most === undefined ? `at least ${least}` : most === 0 ? 'none' : `at most ${most}`;
  return or ? `${bound}, or ${or.words}` : bound;
};

// First what is missed, then what is nearest to its budget. The alternative does not count here: it would hide a figure
// that misses its budget.
const byUse = (a, b) => a.met - b.met || b.used - a.used;

// Every budget with every row that was run for it. `by` tells that it was met by the alternative alone.
export function judge(results) {
  return budgets.map((budget) => {
    const rows = results.rowNames.filter((row) => budget.rows.test(row));
    const divisor = budget.per ? budget.per(results) : 1;
    const checks = rows.flatMap((row) => {
      // What has no figures has not met its budget.
      if (reports(results, row).length === 0) return [{ budget, row, name: row, met: false, used: Infinity }];
      const of = budget.of instanceof RegExp ? names(results, row, budget.of) : [budget.of];
      return of.flatMap((name) => check(results, budget, row, name, divisor) ?? []);
    });
    return { budget, checks, worst: checks.toSorted(byUse)[0] };
  });
}

function check(results, budget, row, name, divisor) {
  const found = over(results, row, (get) => get(name) / divisor);
  if (!found) return undefined;
  const other = budget.or && over(results, row, budget.or.of);
  const [own, alternative] = [met(found, budget), Boolean(other && met(other, budget.or))];
  return {
    budget,
    row,
    name,
    found,
    other,
    met: own || alternative,
    by: !own && alternative ? LOOP : undefined,
    used: used(found, budget),
    limit: budget.limit && over(results, row, budget.limit[1]),
  };
}
