/** The current run: servers, stages of active rollouts, stuck rollouts, failures. */
import { html } from '../vendor/htm-preact.js';
import { useData } from '../data.js';
import { ActiveEpisodes } from '../parts/activeepisodes.js';
import { RecentFailures } from '../parts/recentfailures.js';
import { Notice, Breadcrumbs } from '../parts/notice.js';
import { Progress } from '../parts/progress.js';
import { SeriesChart } from '../parts/serieschart.js';
import { Servers } from '../parts/servers.js';
import { link } from '../route.js';
import { Name } from '../text.js';
import { pluralize } from '../formatting.js';

const POLL_MS = 1000;
const IDLE_MS = 5000;

/** @param {{overview: any}} props */
export function Live({ overview }) {
  const { value: live, error } = useData('live', (found) => (found?.run_id ? POLL_MS : IDLE_MS));
  const { value: history } = useData('live/charts', () => (live?.run_id ? POLL_MS : IDLE_MS));
  const charts = history?.charts ?? [];
  const pace = charts.filter((chart) => chart.name !== 'waiting');
  return html`
    <${Breadcrumbs} name="Live" title="Live" steps=${[['Overview', link([])]]} />
    ${error && html`<${Notice} error=${error} />`}
    ${!live && !error && html`<${Notice} busy="Looking for a run …" />`}
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
