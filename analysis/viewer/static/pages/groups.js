/** The rollouts of a list, grouped by the value of a field, with the solve rate and the mean reward of each group. */
import { html } from '../vendor/htm-preact.js';
import { joined, valueText } from '../columns.js';
import { useData } from '../data.js';
import { useKeys } from '../keys.js';
import { fieldNames } from '../parts/list/listtools.js';
import { Notice, Breadcrumbs } from '../parts/notice.js';
import { changed, go, link } from '../route.js';
import { isGrowing, runOf, versionOf } from '../runs.js';
import { Name, escapeInvisible } from '../text.js';
import { count, interval, percent, plain, pluralize } from '../formatting.js';

const PAGE_LENGTH = 100;
const SEARCH_POLL_MS = 400;
const GROWTH_POLL_MS = 5000;
/** Name, key of the order, whether the first click sorts in descending order. @type {[string, string, boolean][]} */
const HEADS = [['value', 'value', false], ['rollouts', 'rollouts', true], ['solved', 'solved', false], ['mean reward', 'reward', false]];

/** @param {{route: import('../route.js').Route, overview: any}} props */
export function Groups({ route, overview }) {
  const run = runOf(overview, route.path[1]);
  const { query } = route;
  const by = query.get('by') || 'task';
  const order = query.get('order') || '-rollouts';
  const wanted = Number(query.get('start') || 0);
  const request = changed(query, { by, order, start: wanted, limit: PAGE_LENGTH, facet: null, columns: null });
  const interval = (loaded) => (loaded && loaded.searched < 1 ? SEARCH_POLL_MS : isGrowing(run) ? GROWTH_POLL_MS : 0);
  const { value: page, error, stale } = useData(`runs/${run.run}/groups?${request}`, interval, versionOf(run));
  const start = page && !stale ? page.start : wanted; // there may be fewer groups now
  const { value: keys } = useData(`runs/${run.run}/keys`);
  const list = changed(query, { by: null, order: null, start: null });
  const to = (changes) => go(link(route.path, changed(query, { start: null, ...changes })));
  const turnPage = (by) => {
    const target = start + by * PAGE_LENGTH;
    if (page && target >= 0 && target < page.total) to({ start: target || null });
  };
  useKeys({ u: () => go(link(['runs', run.run], list)), n: () => turnPage(1), p: () => turnPage(-1) });
  return html`
    <${Breadcrumbs} name=${`Groups of ${run.name}`} title=${html`Rollouts by <${Name} value=${by} />`}
      steps=${[['Overview', link([])], [html`<${Name} value=${run.name} />`, link(['runs', run.run], list)]]}>
      <label class="row small soft groupby">Group by <select onChange=${(event) => to({ by: event.target.value })}>
        ${[...new Set([by, ...fieldNames(keys)])].map((name) => html`<option value=${name} selected=${name === by}>${escapeInvisible(name)}</option>`)}
      </select></label>
    <//>
    ${list.get('where') && html`<p class="small soft">Only rollouts with <code>${escapeInvisible(list.get('where'))}</code></p>`}
    ${error && html`<${Notice} error=${error} />`}
    ${!page && !error && html`<${Notice} busy="Reading …" />`}
    ${page && html`<div class=${stale ? 'stale' : ''}>
      <p class="soft small" role="status">${pluralize(page.total, 'group')}${page.searched < 1 ? ` so far; read ${percent(page.searched, 0)} of the file` : ''}.
        ${' '}Intervals are 95 %, clustered by task.</p>
      <${GroupTable} run=${run} page=${page} query=${list} order=${order} sort=${(key) => to({ order: key })} />
      ${page.total > PAGE_LENGTH && html`<nav class="paging" aria-label="Pages of the groups">
        <button onClick=${() => turnPage(-1)} disabled=${start === 0}>Previous</button>
        <span class="number small">${count(start + 1)}–${count(start + page.groups.length)} of ${count(page.total)}</span>
        <button onClick=${() => turnPage(1)} disabled=${start + page.groups.length >= page.total}>Next</button>
      </nav>`}
    </div>`}`;
}

function GroupTable({ run, page, query, order, sort }) {
  const head = ([name, key, descending]) => {
    const direction = order === key ? 'ascending' : order === `-${key}` ? 'descending' : undefined;
    const next = direction === 'descending' ? key : direction === 'ascending' || descending ? `-${key}` : key;
    return html`<th scope="col" class=${key === 'value' ? 'words' : ''} aria-sort=${direction}><button onClick=${() => sort(next)}>${name}
      <span aria-hidden="true">${direction === 'ascending' ? '↑' : direction ? '↓' : ''}</span></button></th>`;
  };
  const estimate = (one, format) => html`<td>${one ? format(one.mean) : '–'}<span class="soft small"> ${one && interval(one, format).replace('95% interval ', '')}</span></td>`;
  if (!page.groups.length) return html`<p class="message">No measured rollout matches these filters.</p>`;
  return html`<div class="table"><table class="wide">
    <caption class="hidden">Groups; column headers sort</caption>
    <thead><tr>${HEADS.slice(0, 2).map(head)}<th scope="col">tasks</th>${HEADS.slice(2).map(head)}</tr></thead>
    <tbody>${page.groups.map((group) => {
      const label = group.value === null ? html`<span class="soft">none</span>` : html`<${Name} value=${valueText(group.value)} />`;
      const href = group.where && link(['runs', run.run], changed(query, { where: joined(query.get('where'), group.where) }));
      return html`<tr><th scope="row" class="words">${href ? html`<a href=${href}>${label}</a>` : label}</th>
        <td>${count(group.rollouts)}</td><td>${count(group.tasks)}</td>
        ${estimate(group.solved, percent)}${estimate(group.reward, plain)}</tr>`;
    })}</tbody>
  </table></div>`;
}
