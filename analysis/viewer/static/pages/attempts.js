/** The failed attempts of a run, latest first, and each with what was said, its boards, and where it failed. */
import { html } from '../vendor/htm-preact.js';
import { useData } from '../data.js';
import { count, seconds } from '../formatting.js';
import { useKeys } from '../keys.js';
import { EpisodeView } from '../parts/conversation.js';
import { Breadcrumbs, HeadFacts, loading, Notice, Paging, Table } from '../parts/page.js';
import { Facts } from '../parts/parsed.js';
import { TokenTurns } from '../parts/tokens.js';
import { attemptLink, changed, go, link } from '../route.js';
import { runOf } from '../runs.js';
import { escapeInvisible, Name } from '../text.js';

const PAGE_LENGTH = 100;
const POLL_MS = 3000;
const NAMES = ['rollout', 'attempt', 'kind', 'server', 'after', 'when', 'detail'];

export function Attempts({ route: { path, query }, overview }) {
  const run = runOf(overview, path[1]);
  const start = Number(query.get('start') || 0);
  const request = changed(query, { start, limit: PAGE_LENGTH });
  const { value, error } = useData(`runs/${run.run}/attempts?${request}`, (found) => (found?.searched < 1 || run.status?.state === 'running' ? POLL_MS : 0));
  const to = (changes) => go(link(path, changed(query, { start: null, ...changes })));
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
      ${value.total === 0 ? html`<${Notice} text="No attempt has failed." />` : html`<${Table} label="Failed attempts" wide names=${NAMES}
        left=${['kind', 'server', 'when', 'detail']} keys=${value.lines.map((line) => `${line.task} ${line.repeat} ${line.attempt}`)} rows=${value.lines.map((line) => [
          html`<a href=${attemptLink(run.run, line)}>task ${line.task}, repeat ${line.repeat}</a>`, line.attempt + 1,
          html`<${Name} value=${line.kind} />`, html`<${Name} value=${line.server} />`, seconds(line.seconds),
          line.when > 0 ? new Date(line.when * 1000).toLocaleTimeString('en-GB') : '–',
          html`<td class="words" title=${escapeInvisible(line.detail)}><${Name} value=${line.detail} /></td>`,
        ])} />`}
      <${Paging} label="Pages of the list" start=${start} length=${PAGE_LENGTH} shown=${value.lines.length} total=${value.total} turn=${(at) => to({ start: at || null })} />`}`;
}

export function Attempt({ route, overview }) {
  const [, run, , task, repeat, at] = route.path;
  const { value, error, stale } = useData(`runs/${run}/attempts/${task}/${repeat}/${at}`);
  const list = link(['runs', run, 'attempts']);
  const other = (by) => (value && Number(at) + by >= 0 && Number(at) + by < value.others ? attemptLink(run, { task, repeat, at: Number(at) + by }) : null);
  const goTo = (by) => (other(by) ? go(other(by)) : false);
  useKeys({ '[': () => goTo(-1), ']': () => goTo(1), u: () => go(list) });
  return html`
    <${Breadcrumbs} name=${`Failed attempt ${Number(at) + 1} at task ${task}, repeat ${repeat}`}
      title=${html`Failed attempt <span class="soft">task ${task}, repeat ${repeat}</span>`}
      steps=${[['Overview', link([])], [html`<${Name} value=${runOf(overview, run).name} />`, link(['runs', run])], ['Failed attempts', list]]}>
      <nav class="row" aria-label="Attempts at this rollout">
        ${other(-1) && html`<a class="button" href=${other(-1)}>Earlier attempt</a>`}
        ${other(1) && html`<a class="button" href=${other(1)}>Later attempt</a>`}
        ${value?.measured && html`<a class="button" href=${link(['runs', run, 'tasks', task, repeat])}>The rollout</a>`}
      </nav>
    <//>
    ${loading(value, error, 'Reading …')}
    ${value && html`<div key=${at} class=${stale ? 'stale' : ''}>
      <${HeadFacts} facts=${[
        ['Failure', html`<${Name} value=${value.line.kind} />`, 'bad'], ['Server', html`<${Name} value=${value.line.server || '–'} />`],
        ['After', seconds(value.line.seconds)], ['Attempt', value.line.attempt + 1],
        ['The rollout', value.measured ? 'was measured by a later attempt' : 'has no reward'],
      ]} />
      ${value.note && html`<p class="message small" role="note">${value.note}</p>`}
      ${value.events.length > 0
        ? html`<${EpisodeView} events=${value.events} replay=${value.replay} label="Conversation until the failure" />`
        : html`<p class="mono message wrong"><${Name} value=${value.line.detail} /></p>`}
      <${TokenTurns} events=${value.events} chart=${value.charts.find((chart) => chart.name === 'log_probs')} />
      <${Facts} facts=${value.facts} />
    </div>`}`;
}
