// Whose code an instance spends its CPU time in: `profile.mjs <punctual-lab> <name> <what bench is to do>...` runs one bench,
// takes samples of its instances with Linux' perf meanwhile, and writes lab/bench/profiles/<name>.txt. A sample belongs to
// whoever wrote the source line at its address, the innermost one where code is inlined: punctual, a library, Rust's
// standard library, libc, or the kernel.

import { execFileSync, spawn } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readFileSync, readdirSync, readlinkSync, realpathSync, rmSync } from 'node:fs';
import { writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';

const [binary, name, ...bench] = process.argv.slice(2);
const lab = realpathSync(binary);
const program = join(dirname(lab), 'punctual');
const root = realpathSync(new URL('../..', import.meta.url).pathname);
const folder = mkdtempSync(join(tmpdir(), 'profile-'));
const run = (command, args, input) => execFileSync(command, args, { input, encoding: 'utf8', maxBuffer: 1 << 30 });

/** The process of an instance that is not among `seen`, once there is one; nothing once the bench has ended. */
async function instance(seen, ended) {
  while (!ended()) {
    for (const pid of readdirSync('/proc').filter((entry) => /^\d+$/.test(entry) && !seen.has(entry))) {
      try {
        const words = readFileSync(`/proc/${pid}/cmdline`, 'utf8').split('\0');
        if (words.includes('serve') && readlinkSync(`/proc/${pid}/exe`) === program) return pid;
      } catch {
        // It has ended.
      }
    }
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  return undefined;
}

/** Runs the bench and takes samples of its instances, one after another, as long as each lives; into files of `folder`. */
async function record() {
  const child = spawn(lab, ['bench', ...bench, '--json'], { stdio: ['ignore', 'pipe', 'inherit'] });
  let text = '';
  child.stdout.on('data', (part) => (text += part));
  const done = new Promise((resolve) => child.on('close', resolve));
  const [seen, files] = [new Set(), []];
  for (;;) {
    const pid = await instance(seen, () => child.exitCode !== null || child.signalCode !== null);
    if (pid === undefined) break;
    const data = join(folder, `perf.data.${seen.size}`);
    seen.add(pid);
    const perf = spawn('perf', ['record', '-q', '-e', 'cpu-clock', '-F', '997', '-o', data, '-p', pid]);
    await new Promise((resolve) => perf.on('close', resolve));
    if (existsSync(data)) files.push(data);
  }
  if ((await done) !== 0) throw new Error('the bench has no figures');
  if (seen.size === 0) throw new Error('the bench has no instance');
  return { report: JSON.parse(text), files };
}

/**
 * Counts the samples into `counts`: by address of the program, as in its debug information, and by file for all other
 * files. Returns the number of samples within functions of punctual.
 */
function samples(data, counts) {
  const maps = [];
  for (const line of run('perf', ['script', '-i', data, '--show-mmap-events']).split('\n')) {
    const map = /\[(0x[0-9a-f]+)\((0x[0-9a-f]+)\) @ (0x[0-9a-f]+|0) .*: r-xp (.*)$/.exec(line);
    if (map === null || map[4] !== program) continue;
    const [from, size, at] = map.slice(1, 4).map(BigInt);
    maps.push({ from, size, at });
  }
  const load = /LOAD +(0x[0-9a-f]+) (0x[0-9a-f]+)( 0x[0-9a-f]+){3} R E/.exec(run('readelf', ['-lW', program]));
  const shift = BigInt(load[2]) - BigInt(load[1]);
  let within = 0;
  for (const line of run('perf', ['script', '-i', data, '-F', 'ip,sym,dso']).split('\n')) {
    const sample = /^ *([0-9a-f]+) (.*) \((.*)\)$/.exec(line);
    if (sample === null) continue;
    if (/^<*(&|mut )*punctual(_sinks)?::/.test(sample[2])) within += 1;
    const ip = BigInt(`0x${sample[1]}`);
    const map = maps.find(({ from, size }) => ip >= from && ip < from + size);
    const key = map === undefined ? `\0${sample[3]}` : `0x${(ip - map.from + map.at + shift).toString(16)}`;
    counts.set(key, (counts.get(key) ?? 0) + 1);
  }
  return within;
}

/** Whose the line is. */
function owner(file) {
  const crate = /\/registry\/src\/[^/]+\/([^/]+)\//.exec(file) ?? /\/build\/([^/]+-sys)-[0-9a-f]{16}\//.exec(file);
  if (crate !== null) return crate[1];
  if (file.startsWith('/rustc/') || file.includes('/lib/rustlib/')) return "Rust's standard library";
  if (file.startsWith(`${root}/`)) return `punctual ${file.slice(root.length + 1).replace(/:.*/, '')}`;
  if (/^(src|sinks)\//.test(file)) return `punctual ${file.replace(/:.*/, '')}`;
  return 'not known';
}

/** The owner of the code of a file other than the program. */
function stranger(file) {
  if (/^\[(kernel|unknown|vdso)/.test(file)) return 'the kernel';
  return /\/libc[.-]/.test(file) ? 'libc' : 'not known';
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
    add(stranger(key.slice(1)), count);
  }
  return [...sums].sort(([, one], [, two]) => two - one);
}

try {
  const { report, files } = await record();
  const counts = new Map();
  const within = files.reduce((sum, data) => sum + samples(data, counts), 0);
  const sums = owners(counts);
  const all = sums.reduce((sum, [, count]) => sum + count, 0);
  if (all === 0) throw new Error('there are no samples');
  const own = sums.filter(([who]) => who.startsWith('punctual '));
  const others = sums.filter(([who]) => !who.startsWith('punctual '));
  const share = (count) => `${((100 * count) / all).toFixed(1).padStart(5)} %`;
  const total = own.reduce((sum, [, count]) => sum + count, 0);
  const [each, ratio] = [report.figures.instance_us, report.ratios.instance_cpu_to_raw];
  const beside = ratio === undefined ? '' : `, ${ratio} x the raw client's`;
  const text = [
    `punctual-lab bench ${bench.join(' ')}`,
    `${all} samples of the instances, 997 for each second of CPU time`,
    ...(each === undefined ? [] : [`${each} us of it for an occurrence${beside}`]),
    '',
    `${share(total)}  punctual's own code`,
    `${share(all - total)}  everything else`,
    `${share(within)}  punctual's functions, with all that is inlined into them`,
    '',
    ...others.slice(0, 25).map(([who, count]) => `${share(count)}  ${who}`),
    '',
    "of punctual's own code:",
    ...own.slice(0, 15).map(([who, count]) => `${share(count)}  ${who.slice('punctual '.length)}`),
    '',
  ].join('\n');
  const profiles = join(root, 'lab/bench/profiles');
  mkdirSync(profiles, { recursive: true });
  writeFileSync(join(profiles, `${name}.txt`), text);
  console.log(text);
} finally {
  rmSync(folder, { recursive: true, force: true });
}
