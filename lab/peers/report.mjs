// Takes what the drivers printed, one JSON object a line, writes it all to a file and prints a table.
// `report.mjs <file> <load at start> <name=version>...`: the versions are those of the servers and languages that ran.

import { readFileSync, writeFileSync } from 'node:fs';
import { cpus } from 'node:os';

const [file, load, ...versions] = process.argv.slice(2);
const lines = readFileSync(0, 'utf8').split('\n').filter((line) => line !== '');
const peers = lines.map((line) => JSON.parse(line));
const measured = new Date().toISOString().slice(0, 10);
const ran = Object.fromEntries(versions.map((version) => version.split('=')));
const results = { measured, cores: cpus().length, load_at_start: Number(load), versions: ran, peers };
writeFileSync(file, JSON.stringify(results, null, 2) + '\n');

const { tasks, rate, seconds } = peers[0];
const figures = ['p50', 'p90', 'p99', 'p99.9', 'max', 'min'];
const rows = [['peer', 'version', 'inserted/s', 'handed over/s', ...figures]];
for (const peer of peers) {
  const late = figures.map((figure) => peer.lateness_ms[figure].toFixed(1));
  rows.push([peer.peer, peer.version, String(peer.inserts_per_s), String(peer.throughput_per_s), ...late]);
}
const widths = rows[0].map((_, column) => Math.max(...rows.map((row) => row[column].length)));
console.log(`${tasks} tasks due at once; lateness in ms at ${rate} tasks/s for ${seconds} s`);
for (const row of rows) {
  const cells = row.map((cell, column) => (column < 2 ? cell.padEnd(widths[column]) : cell.padStart(widths[column])));
  console.log(cells.join('  '));
}
