/** Active rollouts: a chart by stage, and the oldest ones. */
import { html } from '../vendor/htm-preact.js';
import { link } from '../route.js';
import { Name } from '../text.js';
import { count, seconds } from '../formatting.js';
import { Chart } from './chart.js';
import { TableHead } from './tablehead.js';

const OLDEST = 50;

/** @param {{waiting: any, episodes: any[], total: number}} props `waiting` is the chart by stage */
export function ActiveEpisodes({ waiting, episodes, total }) {
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
