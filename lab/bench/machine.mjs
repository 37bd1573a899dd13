// Where it is measured: figures mean nothing without it.

import { spawnSync } from 'node:child_process';
import { existsSync, readFileSync, readdirSync } from 'node:fs';
import { cpus, loadavg, release, totalmem } from 'node:os';
import { join } from 'node:path';

// What a program prints, with what it prints to stderr; nothing where there is no such program.
const output = (program, ...args) => {
  const { stdout, stderr } = spawnSync(program, args, { encoding: 'utf8' });
  return `${stdout ?? ''}${stderr ?? ''}`.trim();
};

const version = (...command) => output(...command).match(/\d+(\.\d+)+/)?.[0];

// The version of Kafka's jars, which are looked for where `punctual-lab` looks for them.
function kafka() {
  const { PUNCTUAL_KAFKA, KAFKA_HOME } = process.env;
  const jars = PUNCTUAL_KAFKA || (KAFKA_HOME && join(KAFKA_HOME, 'libs')) || join(cache(), 'kafka-4.3.1');
  const names = existsSync(jars) ? readdirSync(jars) : [];
  return names.map((name) => name.match(/^kafka-clients-(.+)\.jar$/)?.[1]).find(Boolean);
}

function rabbitmq() {
  const packaged = version('dpkg-query', '--show', '--showformat=${Version}', 'rabbitmq-server');
  return packaged ?? version('rabbitmqctl', 'version');
}

export function cache() {
  const { PUNCTUAL_CACHE, XDG_CACHE_HOME, HOME } = process.env;
  return PUNCTUAL_CACHE || join(XDG_CACHE_HOME || join(HOME ?? '', '.cache'), 'punctual');
}

export const load = () => Number(loadavg()[0].toFixed(2));

export function machine() {
  const text = existsSync('/proc/cpuinfo') ? readFileSync('/proc/cpuinfo', 'utf8') : '';
  return {
    cpu: text.match(/^model name\s*:\s*(.+)$/m)?.[1] ?? cpus()[0]?.model ?? 'unknown',
    cores: cpus().length,
    memory_gib: Number((totalmem() / 2 ** 30).toFixed(1)),
    kernel: release(),
  };
}

export function versions(program) {
  const all = {
    punctual: version(program, '--version'),
    rust: version('rustc', '--version'),
    redis: version('redis-server', '--version'),
    kafka: kafka(),
    nats: version('nats-server', '--version'),
    rabbitmq: rabbitmq(),
    java: version('java', '-version'),
  };
  return Object.fromEntries(Object.entries(all).filter(([, found]) => found));
}

// The commit of the measured sources, with `+` if they had uncommitted changes.
export function commit() {
  const hash = output('git', 'rev-parse', '--short=12', 'HEAD');
  // The report itself does not count: a run before may have written it.
  const report = ['README.md', 'results.json', 'plots', 'profiles'].map((name) => `:!lab/bench/${name}`);
  const sources = ['src', 'sinks', 'lab', 'lua', 'Cargo.toml', 'Cargo.lock', ...report];
  const changed = output('git', 'status', '--porcelain', '--untracked-files=no', '--', ...sources);
  return /^[0-9a-f]{12}$/.test(hash) ? hash + (changed ? '+' : '') : undefined;
}
