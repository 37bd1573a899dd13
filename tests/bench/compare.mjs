// Two runs side by side: a ratio hardly depends on the machine, so that a second run must find it again.

import { names, over } from './results.mjs';
import { list, none, number, spread, table, text } from './words.mjs';

// Ratios of CPU, of throughput and of the median lateness, each within a quarter. Tails are shown only: few occurrences
// make them.
const JUDGED = /cpu|throughput|^(scripts|batch)_to_floor|^p50_/;
const WITHIN = 0.25;

// A document, how many were judged, and how many differ.
export function compare(first, second) {
  const rows = [...new Set([...first.rowNames, ...second.rowNames])];
  const found = rows.flatMap((row) => {
    const ratios = [...new Set([first, second].flatMap((results) => names(results, row, /_to_/)))];
    return ratios.map((ratio) => line(row, ratio, over(first, row, ratio), over(second, row, ratio)));
  });
  const judged = found.filter(({ judged }) => judged);
  const differ = judged.filter(({ differs }) => differs);
  const alone = found.filter(({ apart }) => apart === undefined);
  const cells = found.map(({ row, ratio, a, b, apart, says }) => [
    row,
    ratio,
    spread(a),
    spread(b),
    apart === undefined ? none : `${number(apart * 100)} %`,
    says,
  ]);
  const words =
    `${judged.length} ratios of CPU, throughput and p50 are judged; ` +
    `${differ.length} differ by more than ${WITHIN * 100} %` +
    (alone.length > 0 ? `; ${alone.length} ratios are in one run only` : '');
  const document = [
    table(['row', 'ratio', 'first', 'second', 'apart', ''], cells, 2),
    text(words),
    ...(differ.length > 0
      ? [list(differ.map(({ row, ratio, a, b }) => `${row} ${ratio}: ${spread(a)}, ${spread(b)}`))]
      : []),
  ];
  return { document, judged: judged.length, differ: differ.length };
}

function line(row, ratio, a, b) {
  const low = a && b ? Math.min(a.median, b.median) : 0;
  // By how much the larger one is more than the smaller one; the same whichever is first.
  const apart = low > 0 ? Math.max(a.median, b.median) / low - 1 : undefined;
  const judged = JUDGED.test(ratio) && apart !== undefined;
  const differs = judged && apart > WITHIN;
  const says = apart === undefined ? 'in one only' : differs ? 'DIFFERS' : judged ? 'same' : 'shown only';
  return { row, ratio, a, b, apart, judged, differs, says };
}
