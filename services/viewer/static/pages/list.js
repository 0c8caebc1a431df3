/** The rollouts of a run, filtered, sorted and paged. The address contains the entire state. */
import { html, useEffect, useRef } from '../vendor/htm-preact.js';
import { useData } from '../data.js';
import { useKeys } from '../keys.js';
import { Filters } from '../parts/filters.js';
import { RolloutTable } from '../parts/rollouttable.js';
import { Notice, Breadcrumbs } from '../parts/notice.js';
import { changed, go, link } from '../route.js';
import { Name, spelled } from '../text.js';
import { count, percent } from '../formatting.js';

export const PAGE_LENGTH = 100;
const SEARCHING_MS = 400;
const GROWING_MS = 5000;

/** The request for a page of the list. @param {string} run @param {URLSearchParams} query */
function pathOf(run, query) {
  const asked = changed(query, { start: Number(query.get('start') || 0), limit: PAGE_LENGTH });
  return `runs/${run}/rollouts?${asked}`;
}

/** @param {{route: import('../route.js').Route, overview: any}} props */
export function List({ route, overview }) {
  const run = overview.runs[Number(route.path[1])];
  const { query } = route;
  const growing = run.status?.state === 'running' || run.indexed < run.size - run.torn;
  const again = (found) => (found && found.searched < 1 ? SEARCHING_MS : growing ? GROWING_MS : 0);
  const { value: page, error, stale } = useData(pathOf(route.path[1], query), again);
  const list = useRef(null);
  const search = useRef(null);
  const focusOn = useRef(null);
  const start = Number(query.get('start') || 0);
  const filter = (changes) => go(link(['runs', run.run], changed(query, { start: null, ...changes })));
  const turn = (by) => {
    const to = start + by * PAGE_LENGTH;
    if (to >= 0 && page && to < page.total) go(link(['runs', run.run], changed(query, { start: to || null })));
  };
  const move = (by) => {
    const links = [...list.current.querySelectorAll('tbody a')];
    const at = links.indexOf(document.activeElement);
    if (at + by >= links.length || (at >= 0 && at + by < 0)) {
      focusOn.current = by;
      turn(by);
    } else links[at < 0 ? 0 : at + by]?.focus();
  };
  useEffect(() => {
    if (stale || !focusOn.current) return;
    const links = list.current.querySelectorAll('tbody a');
    links[focusOn.current > 0 ? 0 : links.length - 1]?.focus();
    focusOn.current = null;
  }, [stale, page]);
  useKeys({
    j: () => move(1), ArrowDown: () => move(1), k: () => move(-1), ArrowUp: () => move(-1),
    n: () => turn(1), p: () => turn(-1), '/': () => search.current.focus(),
  });
  return html`
    <${Breadcrumbs} name=${`Rollouts of ${run.name}`} steps=${[['Overview', link([])]]} title=${html`Rollouts of <${Name} value=${run.name} />`}>
      ${overview.runs.length > 1 && html`<${OtherRuns} runs=${overview.runs} run=${run} />`}
    <//>
    <${Filters} query=${query} page=${page} search=${search} change=${filter} />
    ${error && html`<${Notice} error=${error} />`}
    ${!page && !error && html`<${Notice} busy="Reading …" />`}
    ${page && html`<div ref=${list} class=${stale ? 'stale' : ''}>
      <${Summary} page=${page} run=${run} />
      <${RolloutTable} run=${run.run} page=${page} query=${query} />
      <${Paging} page=${page} start=${start} turn=${turn} />
    </div>`}`;
}

function OtherRuns({ runs, run }) {
  return html`<label class="row small soft">Run <select onChange=${(event) => go(link(['runs', event.target.value]))}>
    ${runs.map((one) => html`<option value=${one.run} selected=${one.run === run.run}>${spelled(one.name)}</option>`)}
  </select></label>`;
}

function Summary({ page, run }) {
  const all = run.measured + run.failed;
  const held = page.held ?? all;
  const left = all - held;
  return html`<p class="soft small" role="status">
    ${page.total === held ? `${count(held)} rollouts` : `${count(page.total)} of ${count(held)} rollouts`}
    ${left > 0 && ` in this file. The other ${count(left)} rollouts of the run were not exported and are neither filtered nor searched.`}
    ${page.searched < 1 && html` so far; searched ${percent(page.searched, 0)}${' '}
      <progress max="1" value=${page.searched} aria-label="Searched"></progress>`}
  </p>`;
}

function Paging({ page, start, turn }) {
  const end = start + page.lines.length;
  return page.total > PAGE_LENGTH && html`<nav class="paging" aria-label="Pages of the list">
    <button onClick=${() => turn(-1)} disabled=${start === 0}>Previous</button>
    <span class="number small">${count(start + 1)}–${count(end)} of ${count(page.total)}</span>
    <button onClick=${() => turn(1)} disabled=${end >= page.total}>Next</button>
  </nav>`;
}
