/** The boards of two rollouts in step: one control moves both to the state after an aligned turn. */
import { html } from '../../vendor/htm-preact.js';
import { Name } from '../../text.js';
import { plain } from '../../formatting.js';
import { Board } from '../rollout/board.js';
import { Buttons } from '../rollout/boardplayer.js';
import { callsByRow, frameAfter } from './alignment.js';

/** @param {{rollouts: any[], rows: any[], player: any}} props */
export function PairOfBoards({ rollouts, rows, player }) {
  const calls = callsByRow(rows);
  const position = player.at === 0 ? 'start' : `after turn ${player.at} of ${rows.length}`;
  return html`<section class="pair-of-boards" aria-label="Boards">
    <div class="two">${rollouts.map(({ replay }, i) => {
      const frames = replay?.frames ?? [];
      if (!frames.length) return html`<p class="soft small">No board</p>`;
      const known = frames.some((frame) => frame.event !== null);
      const at = player.at === 0 ? 0 : known ? frameAfter(frames, calls[player.at - 1][i]) : Math.min(player.at, frames.length - 1);
      const frame = frames[at];
      return html`<div>
        <${Board} board=${frame.board} cells=${replay.cells} label=${`${i ? 'Second' : 'First'} board, move ${at} of ${frames.length - 1}`} />
        <p class="caption small number">move ${at} of ${frames.length - 1}
          ${frame.move && html` <strong><${Name} value=${frame.move} /></strong>`}
          ${frame.note && html` <span class="badge"><${Name} value=${frame.note} /></span>`}
          ${frame.total !== null && html` <span class="soft">total ${plain(frame.total)}</span>`}</p>
      </div>`;
    })}</div>
    <${Buttons} player=${player} title="both boards" position=${position} />
    <p class="small soft number">Both boards: ${position}</p>
  </section>`;
}
