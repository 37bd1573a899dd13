// The report of what `make bench` has measured:
//   report.mjs show [results.json]     prints the tables
//   report.mjs write [results.json]    the same, and draws the plots; of the results beside this file, writes README.md here and docs/bench.md
//   report.mjs compare A.json B.json   prints each ratio of two runs; exit code 1: one of them differs too much
//   report.mjs compare --worse A.json B.json   the same; exit code 1: one of them is too much worse in the second

import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';

import { compare } from './compare.mjs';
import { draw } from './draw.mjs';
import { plots } from './plots.mjs';
import { at, read } from './results.mjs';
import { report, summary } from './tables.mjs';
import { markdown, plain } from './words.mjs';

const OWN = at('results.json');
const BEGIN = '<!-- bench: what stands here until the end is written by `make bench` -->';
const END = '<!-- bench: end -->';

const [command, ...rest] = process.argv.slice(2);
const worse = command === 'compare' && rest.includes('--worse');
const files = rest.filter((word) => !(worse && word === '--worse'));
const wanted = { show: [0, 1], write: [0, 1], compare: [2, 2] }[command];
if (!wanted || files.length < wanted[0] || files.length > wanted[1]) {
  stop('`show`, `write` and `compare` are known', 'report.mjs show [FILE]; write [FILE]; compare [--worse] FILE FILE');
}

if (command === 'compare') {
  const { document, judged, differ } = compare(open(files[0]), open(files[1]), worse);
  console.log(plain(document));
  if (judged === 0)
    stop('the two have no ratio in common', 'both need the same rows: make bench ROWS=throughput OUT=dir');
  process.exit(differ > 0 ? 1 : 0);
}

const file = files[0] ?? OWN;
const results = open(file);
if (command === 'write') {
  const drawn = plots(results);
  await draw(drawn, join(dirname(file), 'plots'));
  if (resolve(file) === OWN) {
    // A plot of nothing is not drawn, and not shown either.
    const shown = (document) => document.filter((part) => !part.image || drawn[part.image]);
    put(at('README.md'), markdown(shown(report(results)), 'plots'));
    put(at('../../docs/bench.md'), markdown(shown(summary(results)), '../lab/bench/plots'));
  }
}
console.log(plain(report(results)));

function open(file) {
  if (!existsSync(file)) stop(`there is no ${file}`, 'make bench');
  try {
    return read(file);
  } catch (error) {
    return stop(`${file}: ${error.message}`, 'make bench writes it anew');
  }
}

// Between the marks, and nothing else.
function put(file, words) {
  const text = readFileSync(file, 'utf8');
  const [begin, end] = [text.indexOf(BEGIN), text.indexOf(END)];
  if (begin < 0 || end < begin) stop(`${file} has lost the marks of the tables`, `${BEGIN} ... ${END}`);
  writeFileSync(file, `${text.slice(0, begin + BEGIN.length)}\n\n${words}\n\n${text.slice(end)}`);
}

function stop(error, hint) {
  process.stderr.write(`error: ${error}\nhint: ${hint}\n`);
  process.exit(2);
}
