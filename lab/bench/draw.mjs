// Draws a plot as SVG, with Vega from the cache, where `.ci/setup bench` puts it.

import { existsSync, mkdirSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';

import { cache } from './machine.mjs';

const FONT = 'DejaVu Sans, Verdana, sans-serif';
// A white background of its own, so that a plot can be read in a dark theme, too.
const look = {
  background: 'white',
  aria: false,
  padding: 12,
  font: FONT,
  axis: { labelColor: '#333', titleColor: '#333', gridColor: '#e6e6e6', domainColor: '#999', tickColor: '#999' },
  title: { anchor: 'start', fontSize: 13, color: '#111', subtitleColor: '#555' },
  legend: { labelColor: '#333', titleColor: '#333', orient: 'bottom' },
  view: { stroke: null },
};

export async function draw(plots, folder) {
  const library = join(cache(), 'vega');
  if (!existsSync(join(library, 'fetched.json'))) {
    process.stderr.write('error: Vega is missing, the plots are not drawn\nhint: .ci/setup bench\n');
    process.exit(2);
  }
  const require = createRequire(join(library, 'package.json'));
  const load = (name) => import(pathToFileURL(require.resolve(name)));
  const [vega, lite] = await Promise.all([load('vega'), load('vega-lite')]);
  mkdirSync(folder, { recursive: true });
  for (const [name, spec] of Object.entries(plots)) {
    const compiled = lite.compile({ ...spec, config: look }).spec;
    const view = new vega.View(vega.parse(compiled), { renderer: 'none', logLevel: vega.Error });
    // A hundredth of a pixel is enough.
    const svg = (await view.toSVG()).replace(/(\.\d\d)\d+/g, '$1');
    writeFileSync(join(folder, `${name}.svg`), `${svg}\n`);
    view.finalize();
  }
}
