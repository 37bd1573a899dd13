// Runs the rows, round by round, and keeps every run's figures: `run.mjs <punctual-lab> <rounds> <rows> <folder>`. What was
// measured is written after each run, so that nothing is lost when it is interrupted. Exit code 1: a row has no figures.

import { spawn } from 'node:child_process';
import { mkdirSync, renameSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';

import { commit, load, machine, versions } from './machine.mjs';
import { rows } from './rows.mjs';

const [program, rounds, pattern, folder] = process.argv.slice(2);
const chosen = rows.filter(({ row }) => new RegExp(pattern).test(row));
const tell = (words) => process.stderr.write(`bench: ${words}\n`);
if (chosen.length === 0) {
  process.stderr.write(`error: no row is like \`${pattern}\`\nhint: ${rows.map(({ row }) => row).join(', ')}\n`);
  process.exit(2);
}

const file = join(folder, 'results.json');
const begun = Date.now();
const started = new Date(begun).toISOString();
const results = {
  started,
  seconds: 0,
  rounds: Number(rounds),
  rows: pattern,
  commit: commit(),
  machine: machine(),
  versions: versions(join(dirname(program), 'punctual')),
  load_at_start: load(),
  runs: [],
};
if (results.load_at_start > results.machine.cores / 4) tell(`the machine is busy: load ${results.load_at_start}`);

let stop;
let running;
// Ctrl-C is heard by the bench, too, which ends in order; on other signals it gets SIGTERM.
process.on('SIGINT', () => (stop = 'SIGINT'));
for (const signal of ['SIGTERM', 'SIGHUP']) {
  process.on(signal, () => {
    stop = signal;
    running?.kill('SIGTERM');
  });
}

const plan = Array.from({ length: Number(rounds) }, (_, index) => index + 1).flatMap((round) =>
  chosen.filter(({ once }) => round === 1 || !once).map(({ row, args }) => ({ row, round, args })),
);
mkdirSync(folder, { recursive: true });
for (const [index, { row, round, args }] of plan.entries()) {
  if (stop) break;
  tell(`${index + 1} of ${plan.length}: ${row}, round ${round} of ${rounds}`);
  const run = { row, round, args, load: load() };
  let ended = await bench(args);
  if (!ended.report && !stop) {
    tell(`${row} has failed, and is tried once more: ${ended.failed}`);
    run.failed_before = ended.failed;
    ended = await bench(args);
  }
  // What was interrupted has not failed.
  if (!ended.report && stop) break;
  results.runs.push({ ...run, ...ended });
  if (!ended.report) tell(`${row} has no figures: ${ended.failed}`);
  keep();
}
if (stop) {
  tell(
    results.runs.length > 0
      ? `interrupted; ${results.runs.length} of ${plan.length} runs are in ${file}`
      : 'interrupted',
  );
  process.exit(stop === 'SIGINT' ? 130 : 143);
}
process.exit(results.runs.every(({ report }) => report) ? 0 : 1);

// One run: its report, or why there is none, and how long it took.
function bench(args) {
  const from = Date.now();
  return new Promise((resolve) => {
    // It ends with this process, whatever ends that.
    const command = ['--pdeathsig', 'TERM', '--', program, 'bench', ...args, '--json'];
    running = spawn('setpriv', command, { stdio: ['ignore', 'pipe', 'pipe'] });
    let [out, err] = ['', ''];
    running.stdout.setEncoding('utf8').on('data', (text) => (out += text));
    running.stderr.setEncoding('utf8').on('data', (text) => (err += text));
    const end = (why) => {
      const seconds = Number(((Date.now() - from) / 1000).toFixed(1));
      try {
        if (why) throw why;
        resolve({ seconds, report: JSON.parse(out) });
      } catch {
        const lines = err.split('\n').filter((line) => /^(error|hint):/.test(line));
        resolve({ seconds, failed: lines.join('; ') || err.trim().split('\n').at(-1) || String(why ?? 'no JSON') });
      }
    };
    running.on('error', end);
    running.on('close', (code, signal) => end(code === 0 ? undefined : `it ended with ${signal ?? code}`));
  });
}

// Never half a file.
function keep() {
  results.seconds = Math.round((Date.now() - begun) / 1000);
  writeFileSync(`${file}.new`, JSON.stringify(results, null, 1) + '\n');
  renameSync(`${file}.new`, file);
}
