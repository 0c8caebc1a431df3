/** The aligned turns of two rollouts in rows. Turns that are the same are folded and shown once. */
import { html, useState } from '../../vendor/htm-preact.js';
import { Name } from '../../text.js';
import { signed } from '../../formatting.js';
import { KINDS, resultsByCall } from './alignment.js';
import { DiffText } from './difftext.js';
import { readable } from './readable.js';

const PAGE_SIZE = 200;
const TITLES = { system: 'System', user: 'User', reasoning: 'Reasoning', answer: 'Answer', call: 'Tool call', result: 'Result', other: 'Other' };

/**
 * @param {{rows: import('./alignment.js').Row[], current: number, show: (row: number) => void}} props `current`: the row that
 *   the boards show
 */
export function ComparedTurns({ rows, current, show }) {
  const [limit, setLimit] = useState(PAGE_SIZE);
  const blocks = blocksOf(rows.slice(0, Math.max(limit, current + 1)));
  const shown = blocks.reduce((sum, block) => sum + block.rows.length, 0);
  return html`<div class="compared">
    ${blocks.map((block) => (block.same
      ? html`<${SameTurns} key=${block.at} rows=${block.rows} />`
      : html`<${ComparedTurn} key=${block.at} row=${block.rows[0]} at=${block.at} here=${block.at === current} show=${show} />`))}
    ${shown < rows.length && html`<button onClick=${() => setLimit(limit + 5 * PAGE_SIZE)}>Show more (${rows.length - shown} turns left)</button>`}
  </div>`;
}

/** Rows that are the same as their neighbours in one block; each other row in a block of its own. */
function blocksOf(rows) {
  const blocks = [];
  rows.forEach((row, at) => {
    const same = row.kind === 'same';
    if (same && blocks.at(-1)?.same) blocks.at(-1).rows.push(row);
    else blocks.push({ same, at, rows: [row] });
  });
  return blocks;
}

function SameTurns({ rows }) {
  const [open, setOpen] = useState(false);
  const [first, last] = [rows[0].left.turn, rows.at(-1).left.turn];
  const name = first === last ? `Turn ${first} is the same` : `Turns ${first} to ${last} are the same`;
  return html`<details class="same" open=${open} onToggle=${(event) => setOpen(event.currentTarget.open)}>
    <summary class="small soft">${name}</summary>
    ${open && rows.map((row) => html`<div class="side">${row.left.events.map((event) => html`<${ComparedMessage} event=${event} />`)}</div>`)}
  </details>`;
}

function ComparedTurn({ row, at, here, show }) {
  const { kind, left, right } = row;
  const turns = left && right && left.turn !== right.turn ? `Turns ${left.turn} and ${right.turn}` : `Turn ${(left ?? right).turn}`;
  const others = (own, other) => pairs(own?.events ?? [], other?.events ?? []);
  return html`<section class=${`row-of-two ${kind} ${here ? 'here' : ''}`} data-row=${at} tabindex="-1" aria-label=${`${turns}: ${KINDS[kind]}`}
    aria-current=${here ? 'step' : undefined}>
    <header><h2>${turns}</h2> <span class="badge">${KINDS[kind]}</span>
      <button class="quiet" onClick=${() => show(at)}>Show on the boards</button></header>
    <div class="two">
      <${Side} name="First" side="first" events=${others(left, right)} />
      <${Side} name="Second" side="second" events=${others(right, left)} />
    </div>
  </section>`;
}

/** Each event with the event of the other side that has the same speaker and the same place among its speaker's events, results in the order of their calls. */
function pairs(own, other) {
  const of = (events, speaker) => {
    const found = events.filter((event) => event.speaker === speaker);
    return speaker === 'result' ? resultsByCall(of(events, 'call'), found) : found;
  };
  return own.map((event) => [event, of(other, event.speaker)[of(own, event.speaker).indexOf(event)] ?? null]);
}

function Side({ name, side, events }) {
  return html`<div class="side ${side}" role="group" aria-label=${name}>
    <p class="small soft narrow-only">${name}</p>
    ${events.length ? events.map(([event, other]) => html`<${ComparedMessage} event=${event} other=${other} side=${side} />`) : html`<p class="soft">–</p>`}
  </div>`;
}

/** A message; `other` is the one that it is compared with. */
export function ComparedMessage({ event, other = null, side = 'first' }) {
  const tool = event.speaker === 'call' || event.speaker === 'result';
  return html`<div class=${`event ${event.speaker}`}>
    <header><strong class="speaker">${TITLES[event.speaker] ?? event.speaker}</strong>
      ${event.name && html`<code><${Name} value=${event.name} /></code>`}
      ${event.reward !== null && html`<span class="badge number">reward ${signed(event.reward)}</span>`}</header>
    <${DiffText} text=${readable(event.text)} other=${other && readable(other.text)} side=${side} mono=${tool} />
  </div>`;
}
