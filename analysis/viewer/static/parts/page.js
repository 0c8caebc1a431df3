/** What several pages have: title, messages, tables and progress. */
import { html, useEffect } from '../vendor/htm-preact.js';
import { count, percent, seconds } from '../formatting.js';
import { changed, go, link } from '../route.js';
import { escapeInvisible, Name } from '../text.js';

export function Notice({ text, error, busy }) {
  if (busy) return html`<p class="message busy" role="status">${busy}</p>`;
  return html`<div class="message ${error ? 'wrong' : ''}" role=${error ? 'alert' : undefined}>
    <p><${Name} value=${error ? error.message : text} /></p>
  </div>`;
}

/** What is shown beside data of a page: the error of the request, or what the page waits for. No component, because Preact would move what
 * follows one that shows nothing, and moved elements lose the focus. */
export function loading(value, error, busy) {
  if (error) return html`<${Notice} error=${error} />`;
  return !value && html`<${Notice} busy=${busy} />`;
}

/** The path from the overview to this page, and its title. @param {{steps: [any, string][], title: any, name: string, children?: any}} props */
export function Breadcrumbs({ steps, title, name, children }) {
  useEffect(() => {
    document.title = `${name} · Rollyard`;
  }, [name]);
  return html`<div class="trail">
    ${steps.length > 0 && html`<nav aria-label="Breadcrumbs"><ol>
      ${steps.map(([label, href]) => html`<li><a href=${href}>${label}</a></li>`)}
    </ol></nav>`}
    <div class="headline"><h1>${title}</h1>${children}</div>
  </div>`;
}

/** A table that scrolls sideways. The first cell of a row is its header; a cell that needs attributes is a `td` or `th` itself.
 * @param {{label: string, names: string[], left?: string[], rows: any[][], keys?: any[], wide?: boolean, caption?: any}} props  `left`: left-aligned columns;
 * `keys`: one for each row of a table whose rows move, so that a focused link stays what it is */
export function Table({ label, names, left = [], rows, keys = [], wide = false, caption = '' }) {
  const kindOf = (at) => (left.includes(names[at]) ? 'words' : '');
  const cell = (value, at) => {
    if (value?.type === 'td' || value?.type === 'th') return value;
    return at ? html`<td class=${kindOf(at)}>${value}</td>` : html`<th scope="row" class=${kindOf(at)}>${value}</th>`;
  };
  return html`<div class="table" tabindex="0" role="region" aria-label=${label}><table class=${wide ? 'wide' : ''}>
    ${caption && html`<caption>${caption}</caption>`}
    <thead><tr>${names.map((name, at) => html`<th scope="col" class=${kindOf(at)}>${name}</th>`)}</tr></thead>
    <tbody>${rows.map((row, at) => html`<tr key=${keys[at]}>${row.map(cell)}</tr>`)}</tbody>
  </table></div>`;
}

/** Facts side by side. @param {{facts: [string, any, string?][]}} props  names, values and the class of the value */
export function HeadFacts({ facts }) {
  return html`<dl class="headfacts">${facts.map(([name, value, kind = '']) => html`<div><dt>${name}</dt><dd class=${kind}>${value}</dd></div>`)}</dl>`;
}

export const Tile = ({ label, large, lines = [] }) => html`<div class="tile">
  <dt>${label}</dt><dd class="large">${large}</dd>${lines.filter(Boolean).map((line) => html`<dd>${line}</dd>`)}
</div>`;

/** Nothing if there is one page. `turn` gets the start of another page; `shown` is the number of lines of this one. */
export function Paging({ label, start, length, shown, total, turn, names = ['Previous', 'Next'] }) {
  return total > length && html`<nav class="paging" aria-label=${label}>
    <button onClick=${() => turn(Math.max(0, start - length))} disabled=${start === 0}>${names[0]}</button>
    <span class="number small">${count(start + 1)}–${count(start + shown)} of ${count(total)}</span>
    <button onClick=${() => turn(start + length)} disabled=${start + shown >= total}>${names[1]}</button>
  </nav>`;
}

const ARROWS = { ascending: '↑', descending: '↓' };

/** @param {{name: string, sort: string, now: string, descending?: boolean, leftAligned?: boolean, path: (string | number)[], query:
 * URLSearchParams}} props `sort`: its key; `now`: the key that the table is sorted by, `-` before it for descending; `descending`: the
 * first click sorts in descending order. */
export function SortableHeader({ name, sort, now, descending = false, leftAligned = false, path, query }) {
  const direction = now === sort ? 'ascending' : now === `-${sort}` ? 'descending' : undefined;
  const next = direction === undefined ? (descending ? `-${sort}` : sort) : direction === 'descending' ? sort : `-${sort}`;
  const sortTable = () => go(link(path, changed(query, { sort: next, start: null })));
  return html`<th scope="col" class=${leftAligned ? 'words' : ''} aria-sort=${direction}>
    <button onClick=${sortTable}>${name}<span aria-hidden="true">${ARROWS[direction] ?? ''}</span></button>
  </th>`;
}

export function Progress({ status }) {
  const running = status.state === 'running';
  const share = status.expected ? status.measured / status.expected : 0;
  const failures = Object.entries(status.failures);
  return html`<div class="progress" role=${running ? 'status' : undefined}>
    <p class="small soft">
      <span class=${`badge ${['incomplete', 'stopped'].includes(status.state) ? 'bad' : ''}`}>${status.state}</span>${' '}
      ${running && html`<progress max="1" value=${share} aria-label="Collected"></progress> `}
      ${count(status.measured)} of ${count(status.expected)} rollouts (${percent(share, 0)})
      ${running && `, ${count(status.in_flight)} in flight, ${status.rollouts_per_s.toFixed(1)} per second`}
      ${running && status.eta_s !== null && `, ${seconds(status.eta_s)} left`}
      ${status.failed > 0 && html`, <span class="bad">${count(status.failed)} failed</span>`}
      ${failures.length > 0 && html`, failed attempts: ${failures.map(([kind, times], i) => html`
        ${i > 0 && ', '}<${Name} value=${kind} /> ${count(times)}`)}`}
    </p>
    ${status.note && html`<p class="small"><${Name} value=${status.note} /></p>`}
  </div>`;
}

/** A choice of one of the runs; without `at`, none is chosen yet. */
export const RunSelect = ({ label, runs, at = '', choose }) => html`<label class="row small soft">${label} <select onChange=${(event) => choose(event.target.value)}>
  ${!at && html`<option value="" selected>choose</option>`}
  ${runs.map((run) => html`<option value=${run.run} selected=${String(run.run) === at}>${escapeInvisible(run.name)}</option>`)}
</select></label>`;
