/** Draws a board with one square per symbol. Unknown symbols are shown as text. */
import { html } from '../../vendor/htm-preact.js';
import { escapeInvisible } from '../../text.js';

const MOST_CELLS = 10000;

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

function Target() {
  return html`<path class="target" d="M5 1.6 8.4 5 5 8.4 1.6 5z" />`;
}

function Box({ done = false }) {
  return html`<rect class=${done ? 'box done' : 'box'} x="1.2" y="1.2" width="7.6" height="7.6" rx=".8" />
    <path class="mark" d=${done ? 'M3 5.2 4.5 6.7 7.2 3.6' : 'M2.6 2.6 7.4 7.4M7.4 2.6 2.6 7.4'} />`;
}

function Person() {
  return html`<circle class="player" cx="5" cy="5" r="3.4" />
    <circle class="eye" cx="3.9" cy="4.4" r=".6" /><circle class="eye" cx="6.1" cy="4.4" r=".6" />
    <path class="smile" d="M3.6 6.2Q5 7.4 6.4 6.2" />`;
}

/** @param {{board: string, cells: {symbol: string, name: string, looks: string}[], label: string}} props */
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
