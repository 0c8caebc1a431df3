/** What was said in a failed attempt until it failed. */
import { html } from '../../vendor/htm-preact.js';
import { useData } from '../../data.js';
import { seconds } from '../../formatting.js';
import { Notice } from '../notice.js';
import { TokenTurns } from '../rollout/tokenturns.js';
import { Facts } from '../rollout/facts.js';
import { TableHead } from '../tablehead.js';
import { EpisodeView } from './episodeview.js';

/** Loads the attempt. @param {{run: number, task: number, repeat: number, at: number}} props */
export function LoadedAttempt({ run, task, repeat, at }) {
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
