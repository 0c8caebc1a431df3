/** One rollout: its conversation, board, rewards, tokens, failed attempts and other fields. */
import { html, useCallback, useMemo, useRef } from '../vendor/htm-preact.js';
import { useData } from '../data.js';
import { useKeys } from '../keys.js';
import { useNeighbours } from '../neighbours.js';
import { usePlayback } from '../playback.js';
import { Attempts } from '../parts/rollout/attempts.js';
import { BoardPlayer } from '../parts/rollout/boardplayer.js';
import { Conversation } from '../parts/rollout/conversation.js';
import { Facts } from '../parts/rollout/facts.js';
import { Notice, Breadcrumbs } from '../parts/notice.js';
import { Outcome } from '../parts/rollout/outcome.js';
import { Raw } from '../parts/rollout/raw.js';
import { Rewards, stepsOf } from '../parts/rollout/rewards.js';
import { NeighbourLink } from '../parts/rollout/neighbourlink.js';
import { TokenTurns } from '../parts/rollout/tokenturns.js';
import { go, link } from '../route.js';
import { runOf } from '../runs.js';
import { Name } from '../text.js';
import { count, plain, seconds } from '../formatting.js';

/** @param {{route: import('../route.js').Route, overview: any}} props */
export function Rollout({ route, overview }) {
  const [, run, , task, repeat] = route.path;
  const { value: rollout, error, stale } = useData(`runs/${run}/rollouts/${task}/${repeat}`);
  const neighbours = useNeighbours(route, rollout);
  useKeys({
    '[': () => (neighbours.previous ? go(neighbours.previous) : false),
    ']': () => (neighbours.next ? go(neighbours.next) : false),
    u: () => go(neighbours.list),
  });
  const file = html`<${Name} value=${runOf(overview, run).name} />`;
  return html`
    <${Breadcrumbs} name=${`Task ${task}, repeat ${repeat}`} title=${html`Task ${task} <span class="soft">repeat ${repeat}</span>`}
      steps=${[['Overview', link([])], [file, neighbours.list], [`Task ${task}`, link(['runs', run, 'tasks', task])]]}>
      <${NeighbourLinks} neighbours=${neighbours} />
    <//>
    ${error && html`<${Notice} error=${error} />`}
    ${!rollout && !error && html`<${Notice} busy="Reading …" />`}
    ${rollout && html`<div class=${stale ? 'stale' : ''}>
      <${RolloutDetails} key=${`${rollout.run}/${rollout.line.task}/${rollout.line.repeat}`} rollout=${rollout} />
    </div>`}`;
}

/** Links to the neighbours, in the order of the list that the user came from. */
function NeighbourLinks({ neighbours }) {
  return html`<nav class="row" aria-label="Neighbours">
    ${neighbours.place && html`<span class="small soft number">${neighbours.place}</span>`}
    <${NeighbourLink} href=${neighbours.previous} label="Previous" title="Previous ([)" /><${NeighbourLink} href=${neighbours.next} label="Next" title="Next (])" />
  </nav>`;
}

function RolloutDetails({ rollout }) {
  const { replay, events, line } = rollout;
  const steps = useMemo(() => stepsOf(rollout), [rollout]);
  const player = usePlayback(steps.length);
  const conversation = useRef(null);
  const current = steps[player.at]?.event ?? null;
  const show = useCallback((call) => {
    const found = steps.findLastIndex((step) => step.event === call);
    if (found >= 0) player.go(found);
  }, [rollout]);
  const showStep = (step) => {
    player.go(step);
    conversation.current.querySelector(`[data-call="${Number(steps[step].event ?? NaN)}"]`)?.scrollIntoView({ block: 'nearest' });
  };
  const moveFocus = (by) => {
    const all = [...conversation.current.querySelectorAll('article')];
    const at = all.indexOf(document.activeElement);
    const next = all[Math.max(0, Math.min(all.length - 1, at + by))];
    next?.focus();
    next?.scrollIntoView({ block: 'nearest' });
  };
  useKeys({ j: () => moveFocus(1), k: () => moveFocus(-1), ...(steps.length > 0 ? player.keys : {}) });
  const hasAside = replay || steps.length > 0;
  return html`
    <dl class="headfacts">
      <div><dt>Outcome</dt><dd><${Outcome} line=${line} /></dd></div>
      <div><dt>Reward</dt><dd>${plain(line.reward)}</dd></div>
      <div><dt>Tool calls</dt><dd>${count(line.tool_calls)}</dd></div>
      <div><dt>Turns</dt><dd>${count(line.turns)}</dd></div>
      <div><dt>Output tokens</dt><dd>${count(line.output_tokens)}</dd></div>
      <div><dt>Time</dt><dd>${seconds(line.seconds)}</dd></div>
      <div><dt>End</dt><dd><${Name} value=${line.end} /></dd></div>
      ${line.agent && html`<div><dt>Agent</dt><dd><${Name} value=${line.agent} /></dd></div>`}
    </dl>
    <div class=${hasAside ? 'beside' : ''}>
      ${hasAside && html`<aside class="stage" aria-label="Board and rewards">
        ${replay && html`<${BoardPlayer} replay=${replay} player=${player} />`}
        ${steps.length > 1 && html`<${Rewards} steps=${steps} at=${player.at} pick=${showStep} />`}
      </aside>`}
      <section class="conversation" aria-label="Conversation" ref=${conversation}>
        <${Conversation} events=${events} current=${current} show=${steps.length > 0 ? show : null} />
      </section>
    </div>
    <${TokenTurns} events=${events} chart=${rollout.charts.find((chart) => chart.name === 'log_probs')} />
    <${Attempts} attempts=${rollout.attempts} />
    <${Facts} facts=${rollout.facts} />
    <${Raw} path=${`runs/${rollout.run}/rollouts/${line.task}/${line.repeat}/raw`} name=${`rollout-${line.task}-${line.repeat}.json`} />`;
}
