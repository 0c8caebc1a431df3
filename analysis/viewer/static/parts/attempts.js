/** The failed attempts of this rollout; each opens to what was said until it failed. */
import { html, useMemo, useRef, useState } from '../vendor/htm-preact.js';
import { useData } from '../data.js';
import { seconds } from '../formatting.js';
import { useKeys } from '../keys.js';
import { useEpisode } from './board.js';
import { Conversation, RenderedButton, useSetting } from './conversation.js';
import { Notice, TableHead } from './page.js';
import { Facts } from './parsed.js';
import { TokenTurns } from './tokens.js';
import { attemptLink } from '../route.js';
import { Name, Text } from '../text.js';

function formatTime(unixSeconds) {
  return new Date(unixSeconds * 1000).toLocaleString('en-GB');
}

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
  const conversation = useRef(null);
  const { aside, current, show, keys } = useEpisode({ events, replay }, conversation);
  const [swapped, setSwapped] = useSetting('swapped', false);
  const reading = useMemo(() => ({ swapped, probabilities: false, find: '' }), [swapped]);
  useKeys(alone ? { m: () => setSwapped(!swapped), ...keys } : {});
  return html`<div class=${aside ? 'beside' : ''}>
    ${aside}
    <section class="conversation" aria-label=${label} ref=${conversation}>
      <div class="reading row"><${RenderedButton} swapped=${swapped} setSwapped=${setSwapped} /></div>
      <${Conversation} events=${events} current=${current} show=${show} reading=${reading} wanted=${-1} />
    </section>
  </div>`;
}
