/** The rollouts of a run, filtered, sorted and paged. The address contains the entire state. */
import { html, useEffect, useRef } from '../vendor/htm-preact.js';
import { useData } from '../data.js';
import { useKeys } from '../keys.js';
import { Filters } from '../parts/filters.js';
import { RolloutTable } from '../parts/rollouttable.js';
import { Notice, Breadcrumbs } from '../parts/notice.js';
import { StepLinks } from '../parts/steplinks.js';
import { changed, go, link } from '../route.js';
import { runOf } from '../runs.js';
import { Name, escapeInvisible } from '../text.js';
import { count, percent } from '../formatting.js';

export const PAGE_LENGTH = 100;
const SEARCH_POLL_MS = 400;
const GROWTH_POLL_MS = 5000;

/** The request for a page of the list. @param {string} run @param {URLSearchParams} query */
function pathOf(run, query) {
  const request = changed(query, { start: Number(query.get('start') || 0), limit: PAGE_LENGTH });
  return `runs/${run}/rollouts?${request}`;
}

/** @param {{route: import('../route.js').Route, overview: any}} props */
export function List({ route, overview }) {
  const run = runOf(overview, route.path[1]);
  const { query } = route;
  const growing = run.status?.state === 'running' || run.indexed < run.size - run.torn;
  const interval = (loaded) => (loaded && loaded.searched < 1 ? SEARCH_POLL_MS : growing ? GROWTH_POLL_MS : 0);
  const { value: page, error, stale } = useData(pathOf(route.path[1], query), interval);
  const list = useRef(null);
  const search = useRef(null);
  const focusOn = useRef(null);
  const start = Number(query.get('start') || 0);
  const filter = (changes) => go(link(['runs', run.run], changed(query, { start: null, ...changes })));
  const turnPage = (by) => {
    const target = start + by * PAGE_LENGTH;
    if (target >= 0 && page && target < page.total) go(link(['runs', run.run], changed(query, { start: target || null })));
  };
  const moveFocus = (by) => {
    const links = [...list.current.querySelectorAll('tbody a')];
    const at = links.indexOf(document.activeElement);
    if (at + by >= links.length || (at >= 0 && at + by < 0)) {
      focusOn.current = by;
      turnPage(by);
    } else links[at < 0 ? 0 : at + by]?.focus();
  };
  useEffect(() => {
    if (stale || !focusOn.current) return;
    const links = list.current.querySelectorAll('tbody a');
    links[focusOn.current > 0 ? 0 : links.length - 1]?.focus();
    focusOn.current = null;
  }, [stale, page]);
  useKeys({
    j: () => moveFocus(1), ArrowDown: () => moveFocus(1), k: () => moveFocus(-1), ArrowUp: () => moveFocus(-1),
    n: () => turnPage(1), p: () => turnPage(-1), '/': () => search.current.focus(),
  });
  return html`
    <${Breadcrumbs} name=${`Rollouts of ${run.name}`} steps=${[['Overview', link([])]]} title=${html`Rollouts of <${Name} value=${run.name} />`}>
      ${overview.training && html`<${StepLinks} training=${overview.training} run=${run.run} />`}
      ${!overview.training && overview.runs.length > 1 && html`<${OtherRuns} runs=${overview.runs} run=${run} />`}
    <//>
    <${Filters} query=${query} page=${page} search=${search} change=${filter} />
    ${error && html`<${Notice} error=${error} />`}
    ${!page && !error && html`<${Notice} busy="Reading …" />`}
    ${page && html`<div ref=${list} class=${stale ? 'stale' : ''}>
      <${Summary} page=${page} run=${run} />
      <${RolloutTable} run=${run.run} page=${page} query=${query} />
      <${Paging} page=${page} start=${start} turnPage=${turnPage} />
    </div>`}`;
}

function OtherRuns({ runs, run }) {
  return html`<label class="row small soft">Run <select onChange=${(event) => go(link(['runs', event.target.value]))}>
    ${runs.map((one) => html`<option value=${one.run} selected=${one.run === run.run}>${escapeInvisible(one.name)}</option>`)}
  </select></label>`;
}

function Summary({ page, run }) {
  const all = run.measured + run.failed;
  const available = page.exported ?? all;
  const omitted = all - available;
  return html`<p class="soft small" role="status">
    ${page.total === available ? `${count(available)} rollouts` : `${count(page.total)} of ${count(available)} rollouts`}
    ${omitted > 0 && ` in this file. The other ${count(omitted)} rollouts of the run were not exported and are neither filtered nor searched.`}
    ${page.searched < 1 && html` so far; searched ${percent(page.searched, 0)}${' '}
      <progress max="1" value=${page.searched} aria-label="Searched"></progress>`}
  </p>`;
}

function Paging({ page, start, turnPage }) {
  const end = start + page.lines.length;
  return page.total > PAGE_LENGTH && html`<nav class="paging" aria-label="Pages of the list">
    <button onClick=${() => turnPage(-1)} disabled=${start === 0}>Previous</button>
    <span class="number small">${count(start + 1)}–${count(end)} of ${count(page.total)}</span>
    <button onClick=${() => turnPage(1)} disabled=${end >= page.total}>Next</button>
  </nav>`;
}
