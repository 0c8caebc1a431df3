/** Playback of the episode's board and of an optimal solution, each with its controls. */
import { html } from '../../vendor/htm-preact.js';
import { SPEEDS, usePlayback } from '../../playback.js';
import { Name } from '../../text.js';
import { plain, signed } from '../../formatting.js';
import { Board } from './board.js';

const ICONS = {
  start: 'M1 1H2.5V9H1zM9 1V9L3 5z', back: 'M8 1V9L2 5z', play: 'M2 .5 9 5 2 9.5z', pause: 'M1.5 1H4V9H1.5zM6 1H8.5V9H6z',
  ahead: 'M2 1V9L8 5z', end: 'M9 1H7.5V9H9zM1 1V9L7 5z',
};

/** @param {{replay: any, player: ReturnType<typeof usePlayback>}} props */
export function BoardPlayer({ replay, player }) {
  const optimal = replay.optimal ?? [];
  const best = usePlayback(optimal.length);
  return html`<div class="boards">
    ${replay.frames.length > 0 && html`<${Screen} title=${replay.title || 'Played'} frames=${replay.frames}
      cells=${replay.cells} player=${player} />`}
    ${optimal.length > 0 && html`<${Screen} title="Optimal solution" frames=${optimal} cells=${replay.cells} player=${best} />`}
    ${replay.note && html`<p class="note small soft"><${Name} value=${replay.note} /></p>`}
  </div>`;
}

function Screen({ title, frames, cells, player }) {
  const frame = frames[player.at];
  const moves = frames.length - 1;
  const position = player.at === 0 ? 'start' : `move ${player.at} of ${moves}`;
  return html`<section class="screen" aria-label=${title}>
    <h2><${Name} value=${title} /></h2>
    <${Board} board=${frame.board} cells=${cells} label=${`Board, ${position}`} />
    <p class="caption small number"><span>${position}</span>
      ${frame.move && html`<strong><${Name} value=${frame.move} /></strong>`}
      ${frame.note && html`<span class="badge"><${Name} value=${frame.note} /></span>`}
      ${frame.reward !== null && html`<span>${signed(frame.reward)}</span>`}
      ${frame.total !== null && html`<span class="soft">total ${plain(frame.total)}</span>`}
    </p>
    <${Buttons} player=${player} title=${title} position=${`${position}${frame.move ? `: ${frame.move}` : ''}`} />
  </section>`;
}

/** @param {{player: ReturnType<typeof usePlayback>, title: string, position: string}} props */
export function Buttons({ player, title, position }) {
  const { at, last } = player;
  const button = (label, icon, action, disabled) => html`<button aria-label=${label} title=${label} disabled=${disabled} onClick=${action}>
    <svg class="icon" viewBox="0 0 10 10" aria-hidden="true"><path d=${ICONS[icon]} /></svg></button>`;
  return html`<div class="buttons" role="group" aria-label=${`Play: ${title}`}>
    ${button('To the start', 'start', () => player.go(0), at === 0)}
    ${button('One move back', 'back', () => player.go(at - 1), at === 0)}
    ${button(player.playing ? 'Pause' : 'Play', player.playing ? 'pause' : 'play', player.toggle, last === 0)}
    ${button('One move forward', 'ahead', () => player.go(at + 1), at === last)}
    ${button('To the end', 'end', () => player.go(last), at === last)}
    <select aria-label="Speed" onChange=${(event) => player.setSpeed(Number(event.target.value))}>
      ${SPEEDS.map((speed) => html`<option value=${speed} selected=${speed === player.speed}>${speed}×</option>`)}
    </select>
    <input type="range" min="0" max=${last} value=${at} aria-label=${`Move, ${title}`} aria-valuetext=${position}
      onInput=${(event) => player.go(Number(event.target.value))} />
  </div>`;
}
