// What `make bench` measures: every row of the budgets. `once` marks the largest rows: only the first round has them.

const sinks = ['redis', 'kafka', 'nats', 'rabbitmq'];
const kinds = [
  ['', []],
  ['-recurring', ['--recurring']],
];

// Over sinks and kinds, one-shot and recurring.
const each = (bench, among, args) =>
  among.flatMap((sink) =>
    kinds.map(([end, more]) => ({
      row: `${bench}-${sink}${end}`,
      args: [bench, '--sink', sink, ...args(sink), ...more],
    })),
  );

// RabbitMQ takes a tenth as many each second as the others: half as many tasks are enough to judge by.
const tasks = (sink) => ['--tasks', sink === 'rabbitmq' ? '100000' : '200000'];

export const rows = [
  ...each('throughput', sinks, tasks),
  ...each('lateness', sinks, () => ['--rate', '1000', '--seconds', '10']),
  ...each('herd', ['redis', 'kafka'], () => ['--tasks', '100000']),
  { row: 'instances', args: ['instances', '--tasks', '10000', '--instances', '1,5,20'] },
  { row: 'pending', args: ['pending', '--pending', '100000,1000000,10000000'] },
  { row: 'pending-recurring', args: ['pending', '--pending', '100000,1000000', '--recurring'] },
  { row: 'put', args: ['put'] },
  { row: 'idle', args: ['idle'] },
  ...sinks.map((sink) => ({ row: `door-${sink}`, args: ['door', '--sink', sink, ...tasks(sink)] })),
  { row: 'fleet', args: ['fleet', '--instances', '1,5,20', '--shards', '64'] },
  { row: 'death', args: ['death', '--shards', '64'] },
  { row: 'cluster', args: ['cluster', '--masters', '1,3,6'] },
  { row: 'silence', args: ['silence', '--seconds', '45'] },
  { row: 'herd-redis-1m', args: ['herd', '--sink', 'redis', '--tasks', '1000000'], once: true },
  { row: 'pending-recurring-10m', args: ['pending', '--pending', '100000,10000000', '--recurring'], once: true },
  { row: 'put-5m', args: ['put', '--tasks', '5000000'], once: true },
];
