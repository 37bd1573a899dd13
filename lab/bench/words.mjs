// Numbers, tables and documents as people read them: as Markdown, or on a terminal.

export const none = '-';

// Three digits are precise enough; whole numbers, and numbers from 1000 on, keep all digits before the point.
export function number(value) {
  if (!Number.isFinite(value)) return none;
  const size = Math.abs(value);
  if (size >= 1000)
    return Math.round(value)
      .toString()
      .replace(/\B(?=(\d{3})+$)/g, ' ');
  if (Number.isInteger(value)) return String(value);
  return value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : 2);
}

// The median, and from where to where the rounds go.
export function spread(statistics) {
  if (!statistics) return none;
  const [median, min, max] = [statistics.median, statistics.min, statistics.max].map(number);
  return min === max ? median : `${median} (${min} to ${max})`;
}

export const median = (statistics) => number(statistics?.median);

// A document is a list of these.
export const heading = (text) => ({ heading: text });
export const text = (words) => ({ text: words });
export const image = (name, words) => ({ image: name, words });
export const list = (items) => ({ list: items });
// The first `left` columns are words, the others numbers, which stand to the right.
export const table = (head, rows, left = 1) => ({ head, rows, left });

export function markdown(document, plots) {
  const block = (part) => {
    if (part.heading) return `### ${part.heading}`;
    if (part.text) return part.text;
    if (part.image) return `![${part.words}](${plots}/${part.image}.svg)`;
    if (part.list) return part.list.map((item) => `- ${item}`).join('\n');
    const line = (cells) => `| ${cells.join(' | ')} |`;
    const rule = part.head.map((_, column) => (column < part.left ? '---' : '---:'));
    return [line(part.head), `|${rule.join('|')}|`, ...part.rows.map(line)].join('\n');
  };
  return document.map(block).join('\n\n');
}

export function plain(document) {
  const bare = (words) => words.replaceAll('**', '').replaceAll('`', '');
  const block = (part) => {
    if (part.heading) return `# ${part.heading}`;
    if (part.text) return bare(part.text);
    if (part.list) return part.list.map((item) => `- ${bare(item)}`).join('\n');
    const rows = [part.head, ...part.rows].map((row) => row.map(bare));
    const widths = part.head.map((_, column) => Math.max(...rows.map((row) => row[column].length)));
    const pad = (cell, column) => (column < part.left ? cell.padEnd(widths[column]) : cell.padStart(widths[column]));
    return rows.map((row) => row.map(pad).join('  ').trimEnd()).join('\n');
  };
  return document
    .filter((part) => !part.image)
    .map(block)
    .join('\n\n');
}
