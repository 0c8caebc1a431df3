/** Shows a task of two runs next to each other. */
import { html } from '../vendor/htm-preact.js';
import { useData } from '../data.js';
import { useKeys } from '../keys.js';
import { usePlayback } from '../playback.js';
import { Notice, Breadcrumbs } from '../parts/notice.js';
import { RepeatCards, PlaybackControls, longest } from '../parts/rollout/repeatcards.js';
import { ChooseTwo } from '../parts/sidebyside/choose.js';
import { go, link } from '../route.js';
import { runOf } from '../runs.js';
import { Name } from '../text.js';

/** @param {{route: import('../route.js').Route, overview: any}} props */
export function Pair({ route, overview }) {
  const [, first, second, , task, otherTask = task] = route.path; // a task may have different indexes in the two runs
  const responses = [useData(`runs/${first}/tasks/${task}`), useData(`runs/${second}/tasks/${otherTask}`)];
  const player = usePlayback(Math.max(...responses.map(({ value }) => (value ? longest(value.stories) : 0))));
  const up = link(['compare', first, second]);
  useKeys({ u: () => go(up), ...(player.last > 0 ? player.keys : {}) });
  return html`
    <${Breadcrumbs} name=${`Task ${task} in two runs`} title=${`Task ${task} in two runs`} steps=${[['Overview', link([])], ['Compare', up]]} />
    ${responses.every(({ value }) => value) && html`<${ChooseTwo} sides=${responses.map(({ value }) => value.stories)} />`}
    <${PlaybackControls} player=${player} />
    <div class="halves">${[first, second].map((run, i) => html`<section aria-label=${`Run ${i + 1}`}>
      <h2><a href=${link(['runs', run, 'tasks', i ? otherTask : task])}><${Name} value=${runOf(overview, run).name} /></a></h2>
      ${responses[i].error && html`<${Notice} error=${responses[i].error} />`}
      ${responses[i].value && html`<${RepeatCards} rollouts=${responses[i].value.stories} move=${player.at} />`}
    </section>`)}</div>`;
}
