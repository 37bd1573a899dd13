// Two runs side by side: a ratio hardly depends on the machine, so that a second run must find it again.

import { lessIsWorse } from './budgets.mjs';
import { names, over } from './results.mjs';
import { list, none, number, spread, table, text } from './words.mjs';

// Ratios of CPU, of throughput and of the median lateness, each within a quarter. Tails are shown only: few occurrences
// make them.
const JUDGED = /cpu|throughput|^(scripts|batch)_to_floor|^door_to_limit|^p50_/;
const WITHIN = 0.25;

// A document, how many were judged, and how many differ; with `worse` only those count that are worse in the second.
export function compare(first, second, worse = false) {
  const rows = [...new Set([...first.rowNames, ...second.rowNames])];
  const found = rows.flatMap((row) => {
    const ratios = [...new Set([first, second].flatMap((results) => names(results, row, /_to_/)))];
    return ratios.map((ratio) => line(row, ratio, over(first, row, ratio), over(second, row, ratio), worse));
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
    `${differ.length} ${worse ? 'are worse' : 'differ'} by more than ${WITHIN * 100} %` +
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

function line(row, ratio, a, b, worse) {
  const low = a && b ? Math.min(a.median, b.median) : 0;
  // By how much the larger one is more than the smaller one; the same whichever is first.
  const apart = low > 0 ? Math.max(a.median, b.median) / low - 1 : undefined;
  const judged = JUDGED.test(ratio) && apart !== undefined;
  const far = judged && apart > WITHIN;
  const better = far && worse && b.median < a.median !== lessIsWorse(ratio);
  const differs = far && !better;
  const said = better ? 'better' : differs ? (worse ? 'WORSE' : 'DIFFERS') : judged ? 'same' : 'shown only';
  const says = apart === undefined ? 'in one only' : said;
  return { row, ratio, a, b, apart, judged, differs, says };
}
