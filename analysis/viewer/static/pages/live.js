/** The current run: servers, stages of active rollouts, stuck rollouts, failures. */
import { html } from '../vendor/htm-preact.js';
import { useData } from '../data.js';
import { pluralize, count, seconds } from '../formatting.js';
import { SeriesChart, Chart } from '../parts/charts.js';
import { Breadcrumbs, loading, Notice, Progress, TableHead } from '../parts/page.js';
import { link, attemptLink, runOfOutput } from '../route.js';
import { Name, escapeInvisible } from '../text.js';

const POLL_MS = 1000;
const IDLE_MS = 5000;

export function Live({ overview }) {
  const { value: live, error } = useData('live', (found) => (found?.run_id ? POLL_MS : IDLE_MS));
  const { value: history } = useData('live/charts', () => (live?.run_id ? POLL_MS : IDLE_MS));
  const charts = history?.charts ?? [];
  const pace = charts.filter((chart) => chart.name !== 'waiting');
  return html`
    <${Breadcrumbs} name="Live" title="Live" steps=${[['Overview', link([])]]} />
    ${loading(live, error, 'Looking for a run …')}
    ${live?.note && html`<p class="message"><${Name} value=${live.note} /></p>`}
    ${live && !live.run_id && !live.note && html`<${Notice} text="No run is active." />`}
    ${live?.run_id && html`
      <p class="soft small">Run <${Name} value=${live.run_id} />, head <${Name} value=${live.head} />,
        ${` ${pluralize(live.total, 'active rollout')}`}</p>
      ${live.stuck.length > 0 && html`<ul class="stuck" role="alert">${live.stuck.map((line) => html`<li>
        <strong class="bad">Stuck: </strong><${Name} value=${line} /></li>`)}</ul>`}
      ${live.collections.map((one) => html`<section aria-label="Collection">
        <h2 class="path"><${Name} value=${one.output} /></h2><${Progress} status=${one.status} />
      </section>`)}
      ${pace.length > 0 && html`<section class="block" aria-label="Pace"><h2>Pace</h2>
        <div class="charts">${pace.map((chart) => html`<${SeriesChart} key=${chart.name} chart=${chart} />`)}</div>
      </section>`}
      <${Servers} servers=${live.servers} now=${live.time} />
      <${ActiveEpisodes} waiting=${charts.find((chart) => chart.name === 'waiting')} episodes=${live.episodes} total=${live.total} />
      <${SilentAgents} servers=${live.servers} />
      <${RecentFailures} collections=${live.collections} overview=${overview} />`}`;
}

/** Agents of other frameworks, whose episodes cannot be listed. */
function SilentAgents({ servers }) {
  const silent = servers.filter((one) => one.server_type === 'agents' && one.origin);
  return silent.length > 0 && html`<p class="soft small block">Not listed: the episodes of
    ${silent.map((one, at) => html`${at ? ', ' : ' '}<${Name} value=${one.server_name} />`)}. Agents of other frameworks do not report them.</p>`;
}

const OLDEST = 50;

function ActiveEpisodes({ waiting, episodes, total }) {
  if (!total) return null;
  return html`<section class="block" aria-label="Active rollouts"><h2>Active rollouts</h2>
    ${waiting && html`<${Chart} chart=${waiting} />`}
    <div class="table" tabindex="0" role="region" aria-label="Oldest rollouts"><table class="wide">
      <caption>Oldest rollouts ${episodes.length < total ? `${Math.min(OLDEST, episodes.length)} of ${count(total)}` : ''}</caption>
      <${TableHead} names=${['task', 'repeat', 'stage', 'server', 'turn', 'time in stage', 'age']} leftAligned=${['stage', 'server']} />
      <tbody>${episodes.slice(0, OLDEST).map((one) => html`<tr key=${one.episode}>
        <th scope="row"><a href=${link(['live', one.agent, one.episode], { task: one.task, repeat: one.repeat })} aria-label=${`Follow task ${one.task ?? '–'}, repeat ${one.repeat ?? '–'}`}>${one.task ?? '–'}</a></th><td>${one.repeat ?? '–'}</td>
        <td class=${`words ${one.stuck ? 'bad' : ''}`}>${one.stage}${one.stuck && ', stuck'}</td>
        <td class="words"><${Name} value=${one.server} /></td>
        <td>${one.turn}</td><td>${seconds(one.stage_s)}</td><td>${seconds(one.age_s)}</td>
      </tr>`)}</tbody>
    </table></div>
  </section>`;
}

const COLUMNS = ['name', 'state', 'requests/s', 'requests', 'in flight', 'sessions', 'restarts', 'up'];

function Servers({ servers }) {
  return html`<section class="block" aria-label="Servers"><h2>Servers</h2>
    <div class="table" tabindex="0" role="region" aria-label="Servers"><table class="wide">
      <${TableHead} names=${COLUMNS} leftAligned=${['name', 'state']} />
      <tbody>${servers.map((one) => html`<tr key=${one.process_name}>
        <th scope="row" class="words"><${Name} value=${one.process_name} /></th>
        <td class=${`words ${one.ready ? 'good' : 'bad'}`}>
          ${one.ready ? 'ready' : one.status}${one.phase && html`: <${Name} value=${one.phase} />`}
        </td>
        <td>${one.requests_per_s.toFixed(1)}</td><td>${count(one.requests)}</td>
        <td>${count(one.in_flight)}</td><td>${count(one.sessions)}</td>
        <td class=${one.restarts > 0 ? 'bad' : ''}>${count(one.restarts)}</td><td>${seconds(one.uptime_seconds)}</td>
      </tr>`)}</tbody>
    </table></div>
  </section>`;
}

const SHOWN = 50;

function RecentFailures({ collections, overview }) {
  const rows = collections.flatMap(({ output, failures }) => failures.map((row) => ({ row, run: runOfOutput(overview, output) })));
  const latest = rows.sort((a, b) => b.row.time - a.row.time).slice(0, SHOWN);
  return latest.length > 0 && html`<section class="block" aria-label="Failed attempts"><h2>Failed attempts</h2>
    <div class="table" tabindex="0" role="region" aria-label="Failed attempts"><table class="wide">
      <${TableHead} names=${['when', 'task', 'repeat', 'kind', 'server', 'detail']} leftAligned=${['when', 'kind', 'server', 'detail']} />
      <tbody>${latest.map(({ row, run }) => html`<tr>
        <th scope="row" class="words">${run
          ? html`<a href=${attemptLink(run.run, { task: row._ng_task_index, repeat: row._ng_rollout_index, at: row._ng_attempt_index })}>${time(row)}</a>`
          : time(row)}</th>
        <td>${row._ng_task_index}</td><td>${row._ng_rollout_index}</td>
        <td class="words"><${Name} value=${row.failure_kind} /></td><td class="words"><${Name} value=${row.server} /></td>
        <td class="words" title=${escapeInvisible(row.detail)}><${Name} value=${row.detail} /></td>
      </tr>`)}</tbody>
    </table></div>
  </section>`;
}

function time(row) {
  return new Date(row.time * 1000).toLocaleTimeString('en-GB');
}
