/** All failed attempts of a run, latest first. */
import { html } from '../vendor/htm-preact.js';
import { useData } from '../data.js';
import { count, seconds } from '../formatting.js';
import { Breadcrumbs, loading, Notice, Paging, TableHead } from '../parts/page.js';
import { attemptLink, changed, go, link } from '../route.js';
import { runOf } from '../runs.js';
import { Name, escapeInvisible } from '../text.js';

const PAGE_LENGTH = 100;
const POLL_MS = 3000;

export function Attempts({ route, overview }) {
  const run = runOf(overview, route.path[1]);
  const { query } = route;
  const start = Number(query.get('start') || 0);
  const request = changed(query, { start, limit: PAGE_LENGTH });
  const { value, error } = useData(`runs/${run.run}/attempts?${request}`, () => (run.status?.state === 'running' ? POLL_MS : 0));
  const to = (changes) => go(link(['runs', run.run, 'attempts'], changed(query, { start: null, ...changes })));
  const finding = query.get('finding');
  return html`
    <${Breadcrumbs} name=${`Failed attempts of ${run.name}`} steps=${[['Overview', link([])], ['Rollouts', link(['runs', run.run])]]}
      title=${html`Failed attempts of <${Name} value=${run.name} />`} />
    ${loading(value, error, 'Reading …')}
    ${value && html`
      <div class="row">
        <label>Kind <select onChange=${(event) => to({ kind: event.target.value })}>
          <option value="" selected=${!query.get('kind')}>all</option>
          ${Object.entries(value.kinds).map(([kind, number]) => html`<option value=${kind} selected=${query.get('kind') === kind}>
            ${escapeInvisible(kind)} (${count(number)})</option>`)}
        </select></label>
        ${finding && html`<button onClick=${() => to({ finding: null })}>Only rollouts of the finding ${escapeInvisible(finding)} ✕</button>`}
        <span class="soft small" role="status">${count(value.total)} failed attempts, latest first</span>
      </div>
      ${value.total === 0 ? html`<${Notice} text="No attempt has failed." />` : html`<${Rows} run=${run.run} lines=${value.lines} />`}
      <${Paging} label="Pages of the list" start=${start} length=${PAGE_LENGTH} shown=${value.lines.length} total=${value.total} turn=${(at) => to({ start: at || null })} />`}`;
}

function Rows({ run, lines }) {
  return html`<div class="table" tabindex="0" role="region" aria-label="Failed attempts"><table class="wide">
    <${TableHead} names=${['rollout', 'attempt', 'kind', 'server', 'after', 'when', 'detail']} leftAligned=${['kind', 'server', 'when', 'detail']} />
    <tbody>${lines.map((line) => html`<tr key=${`${line.task}/${line.repeat}/${line.at}`}>
      <th scope="row"><a href=${attemptLink(run, line)}>task ${line.task}, repeat ${line.repeat}</a></th>
      <td>${line.attempt + 1}</td>
      <td class="words"><${Name} value=${line.kind} /></td><td class="words"><${Name} value=${line.server} /></td>
      <td>${seconds(line.seconds)}</td>
      <td class="words">${line.when > 0 ? new Date(line.when * 1000).toLocaleTimeString('en-GB') : '–'}</td>
      <td class="words cut" title=${escapeInvisible(line.detail)}><${Name} value=${line.detail} /></td>
    </tr>`)}</tbody>
  </table></div>`;
}
