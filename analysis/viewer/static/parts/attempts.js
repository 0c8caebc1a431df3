/** The failed attempts of this rollout; each opens to what was said until it failed. */
import { html, useState, useCallback, useMemo, useRef } from '../vendor/htm-preact.js';
import { useData } from '../data.js';
import { seconds } from '../formatting.js';
import { useKeys } from '../keys.js';
import { usePlayback, BoardPlayer, Rewards, stepsOf } from './board.js';
import { useSetting, Conversation } from './conversation.js';
import { Notice } from './notice.js';
import { Facts } from './raw.js';
import { TableHead } from './tableheads.js';
import { TokenTurns } from './tokens.js';
import { attemptLink } from '../route.js';
import { Name, Text } from '../text.js';

/** @param {number} unixSeconds */
function formatTime(unixSeconds) {
  return new Date(unixSeconds * 1000).toLocaleString('en-GB');
}

/** @param {{run: number, task: number, repeat: number, attempts: any[]}} props */
export function Attempts({ run, task, repeat, attempts }) {
  return attempts.length > 0 && html`<section class="block" aria-label="Failed attempts"><h2>Failed attempts</h2>
    <ol class="attempts">${attempts.map((one, at) => html`<li>
      <p><strong class="bad"><${Name} value=${one.kind} /></strong> at <${Name} value=${one.server} /> after ${seconds(one.seconds)}
        <span class="soft small"> attempt ${one.attempt + 1}${one.when > 0 && `, ${formatTime(one.when)}`}</span>
        ${' '}<a class="small" href=${attemptLink(run, { task, repeat, at })}>Open</a></p>
      <${Text} value=${one.detail} lines=${8} characters=${800} kind="mono" />
      ${one.has_conversation && html`<${Opening} run=${run} task=${task} repeat=${repeat} at=${at} />`}
    </li>`)}</ol>
  </section>`;
}

/** The conversation is loaded when it is opened. */
function Opening({ run, task, repeat, at }) {
  const [open, setOpen] = useState(false);
  return html`<details class="folded" onToggle=${(event) => setOpen(event.currentTarget.open)}>
    <summary>What was said until then</summary>
    ${open && html`<${LoadedAttempt} run=${run} task=${task} repeat=${repeat} at=${at} />`}
  </details>`;
}

/** Loads the attempt. @param {{run: number, task: number, repeat: number, at: number}} props */
function LoadedAttempt({ run, task, repeat, at }) {
  const { value, error } = useData(`runs/${run}/attempts/${task}/${repeat}/${at}`);
  if (error) return html`<${Notice} error=${error} />`;
  return value ? html`<${AttemptBody} attempt=${value} alone=${false} />` : html`<${Notice} busy="Reading …" />`;
}

/** @param {{attempt: any, alone: boolean}} props */
export function AttemptBody({ attempt, alone }) {
  return html`
    ${attempt.note && html`<p class="message small" role="note">${attempt.note}</p>`}
    ${attempt.events.length > 0 && html`<${EpisodeView} events=${attempt.events} replay=${attempt.replay} label="Conversation until the failure" alone=${alone} />`}
    <${TokenTurns} events=${attempt.events} chart=${attempt.charts.find((chart) => chart.name === 'log_probs')} />
    ${attempt.turns.length > 0 && html`<${TurnTimes} turns=${attempt.turns} />`}
    ${Object.keys(attempt.facts).length > 0 && html`<${Facts} facts=${attempt.facts} />`}`;
}

function TurnTimes({ turns }) {
  return html`<details class="folded"><summary>Time by turn</summary>
    <div class="table" tabindex="0" role="region" aria-label="Time by turn"><table>
      <${TableHead} names=${['turn', 'model', 'tools']} leftAligned=${[]} />
      <tbody>${turns.map((turn) => html`<tr><th scope="row">${turn.turn}</th>
        <td>${turn.model_s === null ? 'no answer' : seconds(turn.model_s)}</td><td>${seconds(turn.tools_s)}</td></tr>`)}</tbody>
    </table></div>
  </details>`;
}

/** `alone`: nothing else on the page reacts to the keys of a rollout. @param {{events: any[], replay: any, label: string, alone: boolean}} props */
export function EpisodeView({ events, replay, label, alone }) {
  const steps = useMemo(() => stepsOf({ events, replay }), [events, replay]);
  const player = usePlayback(steps.length);
  const conversation = useRef(null);
  const [swapped, setSwapped] = useSetting('swapped', false);
  const reading = useMemo(() => ({ swapped, probabilities: false, find: '' }), [swapped]);
  const show = useCallback((call) => {
    const found = steps.findLastIndex((step) => step.event === call);
    if (found >= 0) player.go(found);
  }, [steps]);
  const showStep = (step) => {
    player.go(step);
    conversation.current.querySelector(`[data-call="${Number(steps[step].event ?? NaN)}"]`)?.scrollIntoView({ block: 'nearest' });
  };
  useKeys(alone ? { m: () => setSwapped(!swapped), ...(steps.length > 0 ? player.keys : {}) } : {});
  const hasAside = replay || steps.length > 0;
  return html`<div class=${hasAside ? 'beside' : ''}>
    ${hasAside && html`<aside class="stage" aria-label="Board and rewards">
      ${replay && html`<${BoardPlayer} replay=${replay} player=${player} />`}
      ${steps.length > 1 && html`<${Rewards} steps=${steps} at=${player.at} pick=${showStep} />`}
    </aside>`}
    <section class="conversation" aria-label=${label} ref=${conversation}>
      <div class="reading row"><button aria-pressed=${swapped} title="What is rendered as Markdown; the rest is plain text (m)" onClick=${() => setSwapped(!swapped)}>Rendered: ${swapped ? 'prompts' : 'answers'}</button></div>
      <${Conversation} events=${events} current=${steps[player.at]?.event ?? null} show=${steps.length > 0 ? show : null}
        reading=${reading} wanted=${-1} />
    </section>
  </div>`;
}
