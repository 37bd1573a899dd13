// What was measured, as the report asks for it.

import { existsSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

import { rows } from './rows.mjs';

export const at = (path) => fileURLToPath(new URL(path, import.meta.url));

const PEERS = '../peers/results.json';

export function read(file) {
  const results = JSON.parse(readFileSync(file, 'utf8'));
  const rowNames = [...new Set(results.runs.map(({ row }) => row))];
  // An interrupted `make bench` has fewer rounds than requested, and its last round may lack some rows.
  const last = Math.max(0, ...results.runs.map(({ round }) => round));
  const ran = new Set(results.runs.filter(({ round }) => round === last).map(({ row }) => row));
  const whole = rows.every(({ row, once }) => once || ran.has(row) || !rowNames.includes(row));
  const rounds = whole ? last : `${last - 1} to ${last}`;
  return { ...results, rounds, peers: peers(at(PEERS)), rowNames };
}

// They may not have been measured.
function peers(file) {
  return existsSync(file) ? JSON.parse(readFileSync(file, 'utf8')) : undefined;
}

// How much of an instance's CPU time goes into code that is not punctual's, in percent, where a row was profiled.
export function profile(row) {
  const file = at(`profiles/${row}.txt`);
  const found = existsSync(file) && /([\d.]+) % {2}everything else/.exec(readFileSync(file, 'utf8'));
  return found ? Number(found[1]) : undefined;
}

// The reports of a row, one of each round that has figures.
export const reports = (results, row) =>
  results.runs.filter((run) => run.row === row && run.report).map(({ report }) => report);

// A figure, a ratio or an option of one report: no name is in two of them.
export const value = (report, name) => report.figures[name] ?? report.ratios[name] ?? report.options[name];

// Median, least and most over the rounds of what `of`, a name or a function, says of each; nothing where none says it.
export function over(results, row, of) {
  const get = (report) => (typeof of === 'function' ? of((name) => value(report, name)) : value(report, of));
  const values = reports(results, row).map(get).filter(Number.isFinite);
  return statistics(values);
}

export function statistics(values) {
  if (values.length === 0) return undefined;
  const sorted = [...values].sort((a, b) => a - b);
  const middle = Math.floor(sorted.length / 2);
  const median = sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
  return { median, min: sorted[0], max: sorted.at(-1), count: sorted.length };
}

// The names of a row's figures and ratios that match a pattern.
export const names = (results, row, pattern) =>
  [...new Set(reports(results, row).flatMap(({ figures, ratios }) => Object.keys({ ...figures, ...ratios })))].filter(
    (name) => pattern.test(name),
  );

export const peer = (results, name) => results.peers?.peers.find(({ peer }) => peer === name);
