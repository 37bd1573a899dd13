// Where an instance spends its CPU time: `profile.mjs <punctual> <name> <what bench is to do>...` runs one bench, takes samples of
// its instance with Linux' perf meanwhile, and writes tests/bench/profiles/<name>.txt. A sample belongs to whoever wrote the
// innermost source line at its address, inlined ones too: punctual, a library, Rust's standard library, libc, or the kernel.

import { execFileSync, spawn } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, readdirSync, readlinkSync, realpathSync, rmSync, writeFileSync } from 'node:fs';
import { mkdirSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const [binary, name, ...bench] = process.argv.slice(2);
const program = realpathSync(binary);
const root = realpathSync(new URL('../..', import.meta.url).pathname);
const folder = mkdtempSync(join(tmpdir(), 'profile-'));
const run = (command, args, input) => execFileSync(command, args, { input, encoding: 'utf8', maxBuffer: 1 << 30 });

/** The process of the instance, once it is there. */
async function instance(ended) {
  for (;;) {
    for (const pid of readdirSync('/proc').filter((entry) => /^\d+$/.test(entry))) {
      try {
        const words = readFileSync(`/proc/${pid}/cmdline`, 'utf8').split('\0');
        if (words.includes('serve') && readlinkSync(`/proc/${pid}/exe`) === program) return pid;
      } catch {
        // It has ended.
      }
    }
    if (ended()) throw new Error('the bench has ended before there was an instance');
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

/** Runs the bench and takes samples of its instance, as long as that lives. */
async function record(data) {
  const child = spawn(program, ['bench', ...bench, '--json'], { stdio: ['ignore', 'pipe', 'inherit'] });
  let text = '';
  child.stdout.on('data', (part) => (text += part));
  const done = new Promise((resolve) => child.on('close', resolve));
  const pid = await instance(() => child.exitCode !== null);
  const perf = spawn('perf', ['record', '-q', '-e', 'cpu-clock', '-F', '997', '-o', data, '-p', pid], { stdio: 'inherit' });
  await new Promise((resolve) => perf.on('close', resolve));
  if ((await done) !== 0) throw new Error('the bench has no figures');
  return JSON.parse(text);
}

/** How many samples there are of each address, by the file it lies in; addresses in the program as its debug information has them. */
function samples(data) {
  const maps = [];
  for (const line of run('perf', ['script', '-i', data, '--show-mmap-events']).split('\n')) {
    const map = /\[0x([0-9a-f]+)\(0x([0-9a-f]+)\) @ (0x[0-9a-f]+|0) .*: r-xp (.*)$/.exec(line);
    if (map !== null && map[4] === program) maps.push({ from: BigInt(`0x${map[1]}`), size: BigInt(`0x${map[2]}`), at: BigInt(map[3]) });
  }
  const load = /LOAD +(0x[0-9a-f]+) (0x[0-9a-f]+) 0x[0-9a-f]+ 0x[0-9a-f]+ 0x[0-9a-f]+ R E/.exec(run('readelf', ['-lW', program]));
  const shift = BigInt(load[2]) - BigInt(load[1]);
  const counts = new Map();
  for (const line of run('perf', ['script', '-i', data, '-F', 'ip,dso']).split('\n')) {
    const sample = /^ *([0-9a-f]+) \((.*)\)$/.exec(line);
    if (sample === null) continue;
    const ip = BigInt(`0x${sample[1]}`);
    const map = maps.find(({ from, size }) => ip >= from && ip < from + size);
    const key = map === undefined ? `\0${sample[2]}` : `0x${(ip - map.from + map.at + shift).toString(16)}`;
    counts.set(key, (counts.get(key) ?? 0) + 1);
  }
  return counts;
}

/** Whose the line is. */
function owner(file) {
  const crate = /\/registry\/src\/[^/]+\/([^/]+)\//.exec(file) ?? /\/build\/([^/]+-sys)-[0-9a-f]{16}\//.exec(file);
  if (crate !== null) return crate[1];
  if (file.startsWith('/rustc/') || file.includes('/rust/library/') || file.includes('/lib/rustlib/')) return "Rust's standard library";
  if (file.startsWith(`${root}/`)) return `punctual ${file.slice(root.length + 1)}`;
  if (/^(src|sinks)\//.test(file)) return `punctual ${file}`;
  return 'not known';
}

/** How many samples each owner has. */
function owners(counts) {
  const known = [...counts.keys()].filter((key) => key.startsWith('0x'));
  const lines = known.length > 0 ? run('addr2line', ['-e', program], known.join('\n')).trim().split('\n') : [];
  const sums = new Map();
  const add = (who, count) => sums.set(who, (sums.get(who) ?? 0) + count);
  known.forEach((key, place) => add(owner(lines[place]), counts.get(key)));
  for (const [key, count] of counts) {
    if (key.startsWith('0x')) continue;
    add(/kernel|\.ko|unknown/.test(key) ? 'the kernel' : /libc[.-]/.test(key) ? 'libc' : /vdso/.test(key) ? 'the kernel' : 'not known', count);
  }
  return [...sums].sort(([, one], [, two]) => two - one);
}

try {
  const data = join(folder, 'perf.data');
  const report = await record(data);
  const sums = owners(samples(data));
  const all = sums.reduce((sum, [, count]) => sum + count, 0);
  const own = sums.filter(([who]) => who.startsWith('punctual '));
  const share = (count) => `${((100 * count) / all).toFixed(1).padStart(5)} %`;
  const total = own.reduce((sum, [, count]) => sum + count, 0);
  const ratio = report.ratios.instance_cpu_to_raw;
  const text = [
    `punctual bench ${bench.join(' ')}`,
    `${all} samples of the instance, 997 for each second of CPU time; ${report.figures.instance_us} us for an occurrence, ${ratio} x the raw client's`,
    '',
    `${share(total)}  punctual's own code`,
    `${share(all - total)}  everything else`,
    '',
    ...sums.filter(([who]) => !who.startsWith('punctual ')).slice(0, 25).map(([who, count]) => `${share(count)}  ${who}`),
    '',
    "of punctual's own code:",
    ...own.slice(0, 15).map(([who, count]) => `${share(count)}  ${who.slice('punctual '.length)}`),
    '',
  ].join('\n');
  const profiles = join(root, 'tests/bench/profiles');
  if (!existsSync(profiles)) mkdirSync(profiles);
  writeFileSync(join(profiles, `${name}.txt`), text);
  console.log(text);
} finally {
  rmSync(folder, { recursive: true, force: true });
}
