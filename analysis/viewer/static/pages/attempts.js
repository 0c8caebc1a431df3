/** All failed attempts of a run, latest first. */
import { html } from '../vendor/htm-preact.js';
import { useData } from '../data.js';
import { count, seconds } from '../formatting.js';
import { useKeys } from '../keys.js';
import { AttemptBody } from '../parts/attempts.js';
import { Breadcrumbs, loading, Notice, Paging, TableHead } from '../parts/page.js';
import { attemptLink, attemptsLink, changed, go, link } from '../route.js';
import { runOf } from '../runs.js';
import { escapeInvisible, Name } from '../text.js';

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

export function Attempt({ route, overview }) {
  const [, run, , task, repeat, at] = route.path;
  const { value, error, stale } = useData(`runs/${run}/attempts/${task}/${repeat}/${at}`);
  const number = Number(at);
  const other = (to) => (value && to >= 0 && to < value.others ? attemptLink(Number(run), { task: Number(task), repeat: Number(repeat), at: to }) : null);
  const goTo = (to) => (other(to) ? go(other(to)) : false);
  useKeys({ '[': () => goTo(number - 1), ']': () => goTo(number + 1), u: () => go(attemptsLink(Number(run))) });
  return html`
    <${Breadcrumbs} name=${`Failed attempt ${number + 1} at task ${task}, repeat ${repeat}`}
      title=${html`Failed attempt <span class="soft">task ${task}, repeat ${repeat}</span>`}
      steps=${[['Overview', link([])], [html`<${Name} value=${runOf(overview, run).name} />`, link(['runs', run])], ['Failed attempts', attemptsLink(Number(run))]]}>
      <nav class="row" aria-label="Attempts at this rollout">
        ${other(number - 1) && html`<a class="button" href=${other(number - 1)}>Earlier attempt</a>`}
        ${other(number + 1) && html`<a class="button" href=${other(number + 1)}>Later attempt</a>`}
        ${value?.measured && html`<a class="button" href=${link(['runs', run, 'tasks', task, repeat])}>The rollout</a>`}
      </nav>
    <//>
    ${loading(value, error, 'Reading …')}
    ${value && html`<div class=${stale ? 'stale' : ''}>
      <dl class="headfacts">
        <div><dt>Failure</dt><dd class="bad"><${Name} value=${value.line.kind} /></dd></div>
        <div><dt>Server</dt><dd><${Name} value=${value.line.server || '–'} /></dd></div>
        <div><dt>After</dt><dd>${seconds(value.line.seconds)}</dd></div>
        <div><dt>Attempt</dt><dd>${value.line.attempt + 1}</dd></div>
        <div><dt>The rollout</dt><dd>${value.measured ? 'was measured by a later attempt' : 'has no reward'}</dd></div>
      </dl>
      ${value.events.length === 0 && html`<p class="mono message wrong"><${Name} value=${value.line.detail} /></p>`}
      <${AttemptBody} key=${`${task}/${repeat}/${at}`} attempt=${value} alone />
    </div>`}`;
}
