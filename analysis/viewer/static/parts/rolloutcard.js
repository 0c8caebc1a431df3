/** A summary of a rollout as a card: its outcome and its board. */
import { html } from '../vendor/htm-preact.js';
import { link } from '../route.js';
import { Name, Text } from '../text.js';
import { count, plain } from '../formatting.js';
import { Board } from './rollout/board.js';
import { Outcome } from './rollout/outcome.js';
import { NoteMarks } from './notes/notemarks.js';
import { useNotes } from './notes/notestore.js';
import { keyOf } from './notes/rolloutnotes.js';
import { Verdict } from './verdict.js';

/** @param {{rollout: any, move: number}} props  `move`: the frame to show, limited to the last one. */
export function RolloutCard({ rollout, move }) {
  const { line, replay, run } = rollout;
  const { notes } = useNotes(run);
  const frames = replay?.frames ?? [];
  const last = frames.length - 1;
  const at = Math.min(move, last);
  const frame = frames[at];
  const answer = rollout.events.findLast((event) => event.speaker === 'answer');
  return html`<article class="card" aria-label=${`Repeat ${line.repeat}`}>
    <header>
      <h3><a href=${link(['runs', run, 'tasks', line.task, line.repeat])}>Repeat ${line.repeat}</a></h3><${Outcome} line=${line} />
    </header>
    <${NoteMarks} notes=${notes.get(keyOf(line))} />
    ${frame && html`<${Board} board=${frame.board} cells=${replay.cells} label=${`Board after ${at} of ${last} moves`} />`}
    <dl class="inline">
      <div><dt>reward</dt><dd>${plain(line.reward)}</dd></div>
      <div><dt>calls</dt><dd>${count(line.tool_calls)}</dd></div>
      ${frames.length > 1 && html`<div><dt>move</dt><dd>${at} of ${last}</dd></div>`}
      <div><dt>end</dt><dd><${Name} value=${line.end} /></dd></div>
    </dl>
    <${Verdict} verdict=${rollout.verdict} lines=${2} />
    ${!frame && answer && html`<${Text} value=${answer.text} lines=${6} characters=${280} />`}
  </article>`;
}
