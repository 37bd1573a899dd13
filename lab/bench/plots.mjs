// The plots, in the words of Vega-Lite; medians of the rounds. A plot that would show nothing is left out.

import { names, over, reports } from './results.mjs';
import { nameOf, subject } from './sections.mjs';
import { number } from './words.mjs';

const [OURS, ALSO, THEIRS] = ['#0b6e99', '#d9730d', '#9aa5ad'];
const POWERS = [0.1, 1, 10, 100, 1000];
const stroke = { symbolType: 'stroke', symbolOpacity: 1, symbolSize: 300 };

export function plots(results) {
  const all = {
    throughput: throughput(results),
    lateness: lateness(results),
    percentiles: percentiles(results),
    pending: pending(results),
  };
  return Object.fromEntries(Object.entries(all).filter(([, spec]) => spec));
}

const rowsOf = (results, bench) =>
  results.rowNames.filter((row) => row.startsWith(`${bench}-`) && reports(results, row).length > 0);
const ours = (results, row) => `punctual, ${subject(results, row)}`;
const whose = {
  field: 'whose',
  type: 'nominal',
  legend: null,
  scale: { domain: ['ours', 'theirs'], range: [OURS, THEIRS] },
};
// In the order in which they stand.
const named = (values) => ({
  field: 'name',
  type: 'nominal',
  title: null,
  sort: values.map(({ name }) => name),
  axis: { labelLimit: 300 },
});

function throughput(results) {
  const mine = rowsOf(results, 'throughput').map((row) => {
    const { median } = over(results, row, 'tasks_per_second');
    return { name: ours(results, row), value: median, label: number(median), whose: 'ours' };
  });
  const theirs = (results.peers?.peers ?? []).map(({ peer, throughput_per_s: value }) => ({
    name: nameOf(peer),
    value,
    label: number(value),
    whose: 'theirs',
  }));
  if (mine.length === 0) return undefined;
  const values = [...mine, ...theirs].sort((a, b) => b.value - a.value);
  const y = named(values);
  const x = {
    field: 'value',
    type: 'quantitative',
    title: 'tasks each second, more is better',
    axis: { format: '~s' },
  };
  return {
    title: {
      text: 'Tasks published each second, all due at one moment',
      subtitle: 'the other schedulers hand them to a handler, without a broker behind it',
    },
    data: { values },
    width: 460,
    height: { step: 22 },
    layer: [
      { mark: { type: 'bar', height: 15 }, encoding: { y, x, color: whose } },
      { mark: { type: 'text', align: 'left', dx: 4, fontSize: 11 }, encoding: { y, x, text: { field: 'label' } } },
    ],
  };
}

// Median and 99th percentile, on a scale of powers: what is below its left end, or early, stands there with its figure.
function lateness(results) {
  const LEAST = 0.1;
  const of = (name, p50, p99, kind) => {
    const shown = [p50, p99].map((ms) => Math.max(ms, LEAST));
    return { name, p50: shown[0], p99: shown[1], label: `${number(p50)}, ${number(p99)} ms`, whose: kind };
  };
  const mine = rowsOf(results, 'lateness').flatMap((row) => {
    const [p50, p99] = ['p50_ms', 'p99_ms'].map((name) => over(results, row, name)?.median);
    return p50 === undefined ? [] : [of(ours(results, row), p50, p99, 'ours')];
  });
  const theirs = (results.peers?.peers ?? []).map(({ peer, lateness_ms: ms }) =>
    of(nameOf(peer), ms.p50, ms.p99, 'theirs'),
  );
  if (mine.length === 0) return undefined;
  const values = [...mine, ...theirs].sort((a, b) => a.p99 - b.p99);
  const y = named(values);
  const scale = { type: 'log', domainMin: LEAST, nice: false };
  const x = {
    field: 'p50',
    type: 'quantitative',
    scale,
    title: 'ms after the due, less is better',
    axis: { format: '~g', values: POWERS },
  };
  const high = { ...x, field: 'p99' };
  return {
    title: {
      text: 'How late tasks are, 1000 each second',
      subtitle: 'from the median (dot) to the 99th percentile (bar)',
    },
    data: { values },
    width: 460,
    height: { step: 22 },
    layer: [
      { mark: { type: 'rule', strokeWidth: 3, opacity: 0.6 }, encoding: { y, x, x2: { field: 'p99' }, color: whose } },
      { mark: { type: 'point', filled: true, size: 70, opacity: 1 }, encoding: { y, x, color: whose } },
      { mark: { type: 'tick', thickness: 3, size: 13 }, encoding: { y, x: high, color: whose } },
      {
        mark: { type: 'text', align: 'left', dx: 8, fontSize: 11 },
        encoding: { y, x: high, text: { field: 'label' } },
      },
    ],
  };
}

// Each sink beside the baseline loop; the thin line goes from the least to the most of the rounds.
function percentiles(results) {
  const shares = [
    ['p50', 'p50_ms'],
    ['p90', 'p90_ms'],
    ['p99', 'p99_ms'],
    ['p99.9', 'p999_ms'],
    ['max', 'max_ms'],
  ];
  const values = rowsOf(results, 'lateness').flatMap((row) =>
    [
      ['punctual', ''],
      ['baseline loop', 'floor_'],
    ].flatMap(([path, prefix]) =>
      shares.flatMap(([share, figure]) => {
        const found = over(results, row, prefix + figure);
        if (!found) return [];
        const [sink, recurring] = subject(results, row).split(', ');
        const { median, min, max } = found;
        return [{ sink, kind: recurring ?? 'one-shot', path, share, median, min: Math.max(min, 0.01), max }];
      }),
    ),
  );
  if (values.length === 0) return undefined;
  const x = {
    field: 'share',
    type: 'ordinal',
    sort: shares.map(([share]) => share),
    title: null,
    axis: { labelAngle: 0 },
  };
  const y = {
    field: 'median',
    type: 'quantitative',
    scale: { type: 'log' },
    title: 'ms after the due',
    axis: { format: '~g', values: POWERS },
  };
  const scale = { domain: ['punctual', 'baseline loop'], range: [OURS, ALSO] };
  const color = { field: 'path', type: 'nominal', title: null, scale, legend: stroke };
  const strokeDash = { field: 'kind', type: 'nominal', title: null, legend: { ...stroke, symbolStrokeColor: '#333' } };
  return {
    title: {
      text: 'Percentiles of lateness, 1000 tasks each second',
      subtitle: 'medians; thin lines go from the best round to the worst',
    },
    data: { values },
    columns: 2,
    facet: {
      field: 'sink',
      type: 'nominal',
      title: null,
      sort: [...new Set(values.map(({ sink }) => sink))],
      header: { labelFontSize: 12, labelFontWeight: 'bold' },
    },
    spec: {
      width: 250,
      height: 150,
      layer: [
        {
          mark: { type: 'rule', opacity: 0.45 },
          encoding: { x, y: { ...y, field: 'min' }, y2: { field: 'max' }, color },
        },
        { mark: { type: 'line', point: { size: 22 } }, encoding: { x, y, color, strokeDash } },
      ],
    },
  };
}

function pending(results) {
  const all = ['pending', 'pending-recurring', 'pending-recurring-10m'].flatMap((row) =>
    names(results, row, /^pending_\d+_bytes$/).map((name) => {
      const count = Number(name.split('_')[1]);
      const figure = (end) => over(results, row, `pending_${count}_${end}`)?.median;
      const kind = row === 'pending' ? 'one-shot' : 'recurring';
      return { row, kind, count, cost: figure('script_us') / figure('floor_us'), bytes: figure('bytes') };
    }),
  );
  // Of two rows with the same number, the one that every round has.
  const first = (point, index) =>
    all.findIndex(({ kind, count }) => kind === point.kind && count === point.count) === index;
  const values = all.filter(first);
  if (values.length === 0) return undefined;
  const x = {
    field: 'count',
    type: 'quantitative',
    scale: { type: 'log' },
    title: 'tasks pending',
    axis: { format: '~s', values: values.map(({ count }) => count) },
  };
  const color = {
    field: 'kind',
    type: 'nominal',
    title: null,
    scale: { domain: ['one-shot', 'recurring'], range: [OURS, ALSO] },
  };
  const part = (field, title) => ({
    width: 250,
    height: 160,
    mark: { type: 'line', point: { size: 40 } },
    encoding: { x, y: { field, type: 'quantitative', scale: { zero: true }, title }, color },
  });
  return {
    title: { text: 'What an occurrence costs beside many that are pending' },
    data: { values },
    hconcat: [part('cost', 'time of Redis, to the baseline loop'), part('bytes', 'bytes of Redis for a task')],
  };
}
