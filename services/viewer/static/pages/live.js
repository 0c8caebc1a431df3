/** The run that is going on now: servers, what rollouts wait for, what is stuck, what fails. */
import { html, useEffect, useRef, useState } from '../vendor/htm-preact.js';
import { useData } from '../data.js';
import { ActiveEpisodes } from '../parts/episodes.js';
import { RecentFailures } from '../parts/failing.js';
import { Notice, Breadcrumbs } from '../parts/message.js';
import { Progress } from '../parts/progress.js';
import { Servers } from '../parts/servers.js';
import { Plot } from '../pictures/plot.js';
import { link } from '../route.js';
import { Name } from '../text.js';
import { plain, several } from '../words.js';

const EVERY_MS = 1000;
const IDLE_MS = 5000;
const KEPT = 600;
const SERIES = [{ name: 'rollouts a second', say: plain }, { name: 'being played', say: plain }];

/** Rates of what was seen since the page was opened. @param {any} live */
function useHistory(live) {
  const kept = useRef([[], [], []]);
  const [data, set] = useState(kept.current);
  useEffect(() => {
    if (!live || live.time === kept.current[0].at(-1)) return;
    const running = live.collections.filter((one) => one.status.state === 'running');
    const rate = running.reduce((sum, one) => sum + one.status.rollouts_per_s, 0);
    const [times, rates, playing] = kept.current;
    kept.current = [[...times, live.time].slice(-KEPT), [...rates, rate].slice(-KEPT), [...playing, live.total].slice(-KEPT)];
    set(kept.current);
  }, [live]);
  return data;
}

/** The page. */
export function Live() {
  const { value: live, error } = useData('live', (found) => (found?.run_id ? EVERY_MS : IDLE_MS));
  const data = useHistory(live?.run_id ? live : null);
  return html`
    <${Breadcrumbs} name="Live" title="Live" steps=${[['Overview', link([])]]} />
    ${error && html`<${Notice} error=${error} />`}
    ${!live && !error && html`<${Notice} busy="Looking for a run …" />`}
    ${live?.note && html`<p class="message"><${Name} value=${live.note} /></p>`}
    ${live && !live.run_id && !live.note && html`<${Notice} says="No run is going on here." />`}
    ${live?.run_id && html`
      <p class="soft small">Run <${Name} value=${live.run_id} />, head <${Name} value=${live.head} />,
        ${` ${several(live.total, 'rollout')} being played`}</p>
      ${live.stuck.length > 0 && html`<ul class="stuck" role="alert">${live.stuck.map((line) => html`<li>
        <strong class="bad">Stuck: </strong><${Name} value=${line} /></li>`)}</ul>`}
      ${live.collections.map((one) => html`<section aria-label="Collection">
        <h2 class="path"><${Name} value=${one.output} /></h2><${Progress} status=${one.status} />
      </section>`)}
      ${data[0].length > 1 && html`<section class="block" aria-label="Pace"><h2>Pace</h2>
        <${Plot} label="Rollouts a second and rollouts being played, since this page was opened" data=${data} x="time"
          time=${true} high=${160} series=${SERIES} />
      </section>`}
      <${Servers} servers=${live.servers} now=${live.time} />
      <${ActiveEpisodes} stages=${live.stages} episodes=${live.episodes} total=${live.total} />
      <${RecentFailures} failures=${live.failures} />`}`;
}
