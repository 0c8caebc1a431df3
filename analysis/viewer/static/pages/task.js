/** One task: all its repeats next to each other, with a common playback of their boards. */
import { html } from '../vendor/htm-preact.js';
import { useData } from '../data.js';
import { useKeys } from '../keys.js';
import { usePlayback } from '../playback.js';
import { Notice, Breadcrumbs } from '../parts/notice.js';
import { NeighbourLink } from '../parts/rollout/neighbourlink.js';
import { RepeatCards, PlaybackControls, longest } from '../parts/rollout/repeatcards.js';
import { ChooseTwo } from '../parts/sidebyside/choose.js';
import { go, link } from '../route.js';
import { runOf } from '../runs.js';
import { Name } from '../text.js';

/** @param {{route: import('../route.js').Route, overview: any}} props */
export function Task({ route, overview }) {
  const [, run, , task] = route.path;
  const start = Number(route.query.get('start') || 0);
  const { value, error, stale } = useData(`runs/${run}/tasks/${task}?start=${start}`);
  const file = html`<${Name} value=${runOf(overview, run).name} />`;
  const other = (number) => (stale || number === null || number === undefined ? null : link(['runs', run, 'tasks', number]));
  const [previous, next] = [other(value?.previous), other(value?.next)];
  useKeys({
    '[': () => (previous ? go(previous) : false),
    ']': () => (next ? go(next) : false),
    u: () => go(link(['runs', run])),
  });
  return html`
    <${Breadcrumbs} name=${`Task ${task}`} title=${`Task ${task}`} steps=${[['Overview', link([])], [file, link(['runs', run])]]}>
      <nav class="row" aria-label="Neighbours">
        <a class="button" href=${link(['runs', run], { task })}>In the list</a>
        <${NeighbourLink} href=${previous} label="Previous" title="Previous task ([)" /><${NeighbourLink} href=${next} label="Next" title="Next task (])" />
      </nav>
    <//>
    ${error && html`<${Notice} error=${error} />`}
    ${!value && !error && html`<${Notice} busy="Reading …" />`}
    ${value && html`<div class=${stale ? 'stale' : ''}>
      <${Repeats} key=${`${run}/${value.task}/${value.start}`} rollouts=${value.stories} />
      <${More} route=${route} value=${value} />
    </div>`}`;
}

/** Paging for tasks with more repeats than one response contains. */
function More({ route, value }) {
  const end = value.start + value.stories.length;
  return (value.start > 0 || end < value.total) && html`<nav class="paging" aria-label="More repeats">
    ${value.start > 0 && html`<a class="button" href=${link(route.path)}>First</a>`}
    <span class="small number">${value.start + 1}–${end} of ${value.total}</span>
    ${end < value.total && html`<a class="button" href=${link(route.path, { start: end })}>Next</a>`}
  </nav>`;
}

function Repeats({ rollouts }) {
  const player = usePlayback(longest(rollouts));
  useKeys(player.last > 0 ? player.keys : {});
  return html`
    <${ChooseTwo} sides=${[rollouts, rollouts]} />
    <${PlaybackControls} player=${player} />
    <h2 class="hidden">Repeats</h2>
    <${RepeatCards} rollouts=${rollouts} move=${player.at} />`;
}
