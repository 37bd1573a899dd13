// The report: which tables there are, and what stands in them.

import { judge, limits, target } from './budgets.mjs';
import { profile, reports } from './results.mjs';
import { rows } from './rows.mjs';
import { nameOf, sections } from './sections.mjs';
import { heading, image, list, median, none, number, spread, table, text } from './words.mjs';

// The whole report, as it stands in lab/bench/README.md.
export function report(results) {
  const judged = judge(results);
  return [
    ...about(results),
    heading('Budgets'),
    text('The row that comes nearest to its budget, or is furthest from it; the figure is the median of the rounds.'),
    budgets(results, judged),
    ...missed(judged),
    ...sections.flatMap(({ of, title, about, columns, plots }) => {
      const rows = results.rowNames.filter((row) => of.test(row) && reports(results, row).length > 0);
      const lines = rows.flatMap((row) => columns(results, row));
      if (lines.length === 0) return [];
      const head = Object.keys(lines[0]);
      const cells = lines.map((line) => head.map((title) => line[title] ?? none));
      const prose = [...new Set([title.toLowerCase(), ...rows])].flatMap((key) => limits[key] ?? []);
      const verdicts = judged.flatMap(({ checks }) => checks).filter(({ row }) => rows.includes(row));
      return [
        heading(title),
        text(about),
        table(head, cells),
        ...verdict(verdicts),
        ...(prose.length > 0 ? [text('What limits it:'), list(prose)] : []),
        ...plots.map(([name, words]) => image(name, words)),
      ];
    }),
    ...beside(results),
    heading('Rows'),
    text('Times are of one run, with starting servers and putting tasks; the load is that of the machine just before.'),
    commands(results),
  ];
}

// The short one, as it stands in docs/bench.md.
export function summary(results) {
  const { machine, started, rounds } = results;
  const where = `${machine.cores} cores (${machine.cpu})`;
  const words = `Measured on ${started.slice(0, 10)} on ${where}, ${rounds === 1 ? 'one round' : `medians of ${rounds} rounds`}`;
  return [
    text(`${words}; [lab/bench](../lab/bench/README.md) has method, spread and limits of each figure.`),
    budgets(results, judge(results), true),
    image('throughput', 'Tasks published each second, beside other schedulers'),
    image('lateness', 'How late tasks are at 1000 each second, beside other schedulers'),
  ];
}

function about(results) {
  const { machine, versions, started, seconds, rounds, commit, load_at_start: load } = results;
  const ran = Object.entries(versions).map(([name, version]) => `${name} ${version}`);
  const failed = results.runs.filter(({ report }) => !report);
  const again = results.runs.filter(({ report, failed_before }) => report && failed_before);
  const notes = new Set(results.runs.flatMap(({ report }) => report?.notes ?? []));
  const missing = rows.filter(({ row }) => !results.rowNames.includes(row));
  const busy = load > machine.cores / 4 ? ', **the machine was busy**' : '';
  const tell = (run, why) => `\`${run.row}\`, round ${run.round}: ${why}`;
  return [
    list([
      `machine: ${machine.cpu}, ${machine.cores} cores, ${machine.memory_gib} GiB, Linux ${machine.kernel}`,
      `versions: ${ran.join(', ')}${commit ? `; commit ${commit}` : ''}`,
      `measured: ${started.slice(0, 16).replace('T', ' ')} UTC, ` +
        `${rounds === 1 ? '1 round' : `${rounds} rounds`} in ${Math.round(seconds / 60)} minutes; load at start ${load}${busy}`,
    ]),
    ...(failed.length > 0
      ? [text('**Without figures, twice:**'), list(failed.map((run) => tell(run, run.failed)))]
      : []),
    ...(again.length > 0
      ? [text('Measured at the second try:'), list(again.map((run) => tell(run, run.failed_before)))]
      : []),
    ...(missing.length > 0 ? [text(`Not run: ${missing.map(({ row }) => `\`${row}\``).join(', ')}.`)] : []),
    ...(notes.size > 0 ? [text('Notes of the benches:'), list([...notes])] : []),
  ];
}

function budgets(results, judged, short) {
  const head = ['budget', 'target', 'measured', ...(short ? [] : ['where', 'limit in the same run']), 'met'];
  const rows = judged.map(({ budget, checks, worst }) => {
    const [of, met, loop] = [checks.length, ...['met', 'by'].map((is) => checks.filter((check) => check[is]).length)];
    const count = of === 0 ? 'not measured' : met === of ? `yes, ${of} of ${of}` : `**${met} of ${of}**`;
    const figure = worst?.found ? (short ? median(worst.found) : spread(worst.found)) : none;
    const limit = worst?.limit ? `${median(worst.limit)} ${budget.limit[0]}` : none;
    const where = worst ? `\`${label(worst)}\`` : none;
    const ratio = worst?.other && (worst.by || !worst.met) ? ` (${number(worst.other.median)} x the baseline loop)` : '';
    const by = loop > 0 ? `, ${loop} by the baseline loop` : '';
    return [budget.words, target(budget), figure + ratio, ...(short ? [] : [where, limit]), count + by];
  });
  return table(head, rows, head.length);
}

// A row, and which of its figures where it has several.
const label = ({ budget, row, name, found }) => (found && budget.of instanceof RegExp ? `${row} ${name}` : row);

// Whose code the instance spends its time in, where a budget is missed.
function outside(row) {
  const share = profile(row);
  if (share === undefined) return 'no profile';
  return `${number(share)} % of the instance's time outside punctual's own code ([profile](profiles/${row}.txt))`;
}

function missed(judged) {
  const checks = judged.flatMap(({ checks }) => checks.filter(({ met }) => !met));
  if (checks.length === 0) return [];
  const items = checks.map(({ budget, found, limit, ...check }) => {
    const beside = limit ? `; ${median(limit)} ${budget.limit[0]}` : '';
    const where = label({ budget, found, ...check });
    const measured = `**${found ? spread(found) : 'no figures'}**, budget ${target(budget)}${beside}`;
    return `\`${where}\`: ${budget.words}: ${measured}${budget.strict ? '' : `; ${outside(check.row)}`}`;
  });
  return [text('Missed:'), list(items)];
}

// One line for a section: all met, or what is not, and what is met by the alternative.
function verdict(checks) {
  if (checks.length === 0) return [];
  const name = (check) => `${check.budget.short} of \`${label(check)}\``;
  const names = checks.filter(({ met }) => !met).map(name);
  const loop = checks.filter(({ by }) => by).map(name);
  const words = names.length === 0 ? `Every budget is met (${checks.length})` : `**Missed: ${names.join(', ')}**`;
  return [text(`${words}${loop.length > 0 ? `; by the baseline loop's time: ${loop.join(', ')}` : ''}.`)];
}

function beside({ peers }) {
  if (!peers) return [text('Other schedulers: not measured yet; `make bench-peers` does it.')];
  const rows = peers.peers.map(({ peer, version, lateness_ms: late, ...figures }) => {
    const of = [figures.inserts_per_s, figures.throughput_per_s, late.p50, late.p99, late['p99.9'], late.min];
    return [`${nameOf(peer)} ${version}`, ...of.map(number)];
  });
  const words = `Measured on ${peers.measured} as [lab/peers](../peers/README.md) tells: what they measure ends`;
  return [
    heading('Other schedulers'),
    text(`${words} where a handler begins, without a broker behind it. A lateness below zero is too early.`),
    table(['peer', 'inserted/s', 'handed over/s', 'p50 ms', 'p99 ms', 'p99.9 ms', 'min ms'], rows),
  ];
}

function commands(results) {
  const rows = results.rowNames.map((row) => {
    const runs = results.runs.filter((run) => run.row === row);
    const [most, load] = ['seconds', 'load'].map((name) => Math.max(...runs.map((run) => run[name])));
    const figures = `${runs.filter(({ report }) => report).length} of ${runs.length}`;
    return [`\`${row}\``, `\`punctual-lab bench ${runs[0].args.join(' ')}\``, figures, number(most), number(load)];
  });
  return table(['row', 'command', 'runs with figures', 'longest, s', 'highest load'], rows, 2);
}
