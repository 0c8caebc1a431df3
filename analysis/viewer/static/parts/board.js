/** Playback of the episode's board and of an optimal solution, each with its controls. */
import { html, useCallback, useEffect, useMemo, useState } from '../vendor/htm-preact.js';
import { plain, signed, pluralize } from '../formatting.js';
import { Name, escapeInvisible } from '../text.js';

const ICONS = {
  start: 'M1 1H2.5V9H1zM9 1V9L3 5z', back: 'M8 1V9L2 5z', play: 'M2 .5 9 5 2 9.5z', pause: 'M1.5 1H4V9H1.5zM6 1H8.5V9H6z',
  ahead: 'M2 1V9L8 5z', end: 'M9 1H7.5V9H9zM1 1V9L7 5z',
};

function BoardPlayer({ replay, player }) {
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

const MOST_CELLS = 10000;
const Target = () => html`<path class="target" d="M5 1.6 8.4 5 5 8.4 1.6 5z" />`;
const Box = ({ done = false }) => html`<rect class=${done ? 'box done' : 'box'} x="1.2" y="1.2" width="7.6" height="7.6" rx=".8" />
    <path class="mark" d=${done ? 'M3 5.2 4.5 6.7 7.2 3.6' : 'M2.6 2.6 7.4 7.4M7.4 2.6 2.6 7.4'} />`;
const Person = () => html`<circle class="player" cx="5" cy="5" r="3.4" />
    <circle class="eye" cx="3.9" cy="4.4" r=".6" /><circle class="eye" cx="6.1" cy="4.4" r=".6" />
    <path class="smile" d="M3.6 6.2Q5 7.4 6.4 6.2" />`;

/** The drawings by look, each within a square of 10 units. */
const LOOKS = {
  wall: () => html`<rect class="wall" width="10" height="10" />`,
  floor: () => null,
  target: () => html`<${Target} />`,
  box: () => html`<${Box} />`,
  box_done: () => html`<${Target} /><${Box} done=${true} />`,
  player: () => html`<${Person} />`,
  player_on_target: () => html`<${Target} /><${Person} />`,
};

export function Board({ board, cells, label }) {
  const rows = board.split('\n').filter((row, i, all) => row || i < all.length - 1).map((row) => [...row]);
  const width = Math.max(1, ...rows.map((row) => row.length));
  if (width * rows.length > MOST_CELLS) return html`<pre class="text board">${escapeInvisible(board)}</pre>`;
  const known = new Map(cells.map((cell) => [cell.symbol, cell]));
  return html`<svg class="squares" viewBox="0 0 ${width * 10} ${rows.length * 10}" role="img" aria-label=${label}>
    <rect class="floor" width=${width * 10} height=${rows.length * 10} />
    ${rows.map((row, y) => row.map((symbol, x) => {
      const cell = known.get(symbol);
      const draw = cell && Object.hasOwn(LOOKS, cell.looks) ? LOOKS[cell.looks] : null;
      return html`<g transform="translate(${x * 10} ${y * 10})">
        <rect class="square" width="10" height="10" />
        ${draw ? draw() : symbol.trim() && html`<text class="symbol" x="5" y="7.4">${escapeInvisible(symbol)}</text>`}
      </g>`;
    }))}
  </svg>`;
}

const HEIGHT = 44;
const WIDTH = 400;

/** The steps of an episode: the moves of its board if it has one, else its tool calls with a reward. `event` is the index of the call that
 * the step belongs to, counted over all calls. @param {any} rollout
 * @returns {{reward: number | null, event: number | null, name: string}[]} */
function stepsOf(rollout) {
  if (rollout.replay) return rollout.replay.frames.map((frame, i) => ({ reward: frame.reward, event: frame.event, name: `move ${i}` }));
  const order = new Map(rollout.events.filter((event) => event.speaker === 'call').map((event, i) => [event.call, i]));
  const results = rollout.events.filter((event) => event.speaker === 'result');
  if (results.every((event) => event.reward === null)) return [];
  return results.map((event, i) => ({ reward: event.reward, event: order.get(event.call) ?? null, name: `call ${i + 1}` }));
}

function Rewards({ steps, at, pick }) {
  const rewards = steps.map((step) => step.reward ?? 0);
  const largest = Math.max(...rewards.map(Math.abs)) || 1;
  const width = WIDTH / steps.length;
  // A step costs 0.1 and a solved board gives 10; square roots keep the small rewards visible.
  const size = (value) => Math.sqrt(Math.abs(value) / largest) * (HEIGHT / 2 - 3);
  const click = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    pick(Math.max(0, Math.min(steps.length - 1, Math.floor(((event.clientX - box.left) / box.width) * steps.length))));
  };
  const total = rewards.reduce((sum, value) => sum + value, 0);
  return html`<section class="strip" aria-label="Rewards by step">
    <h2>Rewards <span class="small soft">
      ${pluralize(steps.length, 'step')}, total ${plain(Number(total.toFixed(6)))}; column heights are square roots</span></h2>
    <svg viewBox="0 0 ${WIDTH} ${HEIGHT}" preserveAspectRatio="none" role="img" onClick=${click}
      aria-label=${`Rewards of ${pluralize(steps.length, 'step')}; now ${steps[at]?.name}: ${signed(steps[at]?.reward)}`}>
      <rect class="now" x=${at * width} width=${width} height=${HEIGHT} />
      <line class="zero" x1="0" x2=${WIDTH} y1=${HEIGHT / 2} y2=${HEIGHT / 2} />
      ${rewards.map((value, i) => html`<rect class=${value < 0 ? 'loss' : 'gain'} x=${i * width + width * 0.1} width=${width * 0.8}
        y=${value < 0 ? HEIGHT / 2 : HEIGHT / 2 - size(value)} height=${Math.max(0.5, size(value))}>
        <title>${`${steps[i].name}: ${signed(value)}`}</title></rect>`)}
    </svg>
  </section>`;
}

/** The steps of an episode and their player. `current` is the call that the board shows, and `show` goes to the board of a call; both are
 * null without steps. `conversation` is a ref. */
export function useEpisode({ events, replay }, conversation) {
  const steps = useMemo(() => stepsOf({ events, replay }), [events, replay]);
  const player = usePlayback(steps.length);
  const show = useCallback((call) => {
    const found = steps.findLastIndex((step) => step.event === call);
    if (found >= 0) player.go(found);
  }, [steps]);
  const pick = (step) => {
    player.go(step);
    conversation.current.querySelector(`[data-call="${Number(steps[step].event ?? NaN)}"]`)?.scrollIntoView({ block: 'nearest' });
  };
  const hasSteps = steps.length > 0;
  const aside = (replay || hasSteps) && html`<aside class="stage" aria-label="Board and rewards">
    ${replay && html`<${BoardPlayer} replay=${replay} player=${player} />`}
    ${steps.length > 1 && html`<${Rewards} steps=${steps} at=${player.at} pick=${pick} />`}
  </aside>`;
  return { aside, current: steps[player.at]?.event ?? null, show: hasSteps ? show : null, keys: hasSteps ? player.keys : {} };
}

const SPEEDS = [1, 2, 4, 8];
const FRAME_MS = 1000;

/** Starts at the last frame, because users look for the outcome first, and stays at the end while frames arrive. @param {number} length */
export function usePlayback(length) {
  const last = Math.max(0, length - 1);
  const [selected, setAt] = useState(/** @type {number | null} */ (null));
  const at = Math.min(selected ?? last, last);
  const [playing, setPlaying] = useState(false);
  const [speed, setSpeed] = useState(4);
  useEffect(() => {
    if (!playing) return undefined;
    if (at >= last) {
      setPlaying(false);
      return undefined;
    }
    const timer = setTimeout(() => setAt(at + 1), FRAME_MS / speed);
    return () => clearTimeout(timer);
  }, [playing, at, speed, last]);
  const stop = useCallback(() => setPlaying(false), []);
  const go = useCallback((to) => {
    setPlaying(false);
    setAt(to >= last ? null : Math.max(0, to));
  }, [last]);
  const toggle = () => {
    if (!playing && at >= last) setAt(0);
    setPlaying(!playing);
  };
  const keys = {
    ' ': toggle, ArrowLeft: () => go(at - 1), ArrowRight: () => go(at + 1), Home: () => go(0), End: () => go(last),
  };
  return { at, last, playing, speed, setSpeed, go, stop, toggle, keys };
}
