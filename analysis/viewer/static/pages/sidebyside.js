/** Two rollouts side by side: aligned turns, the differences in their words, boards in step. */
import { html, useEffect, useMemo, useRef, useState } from '../vendor/htm-preact.js';
import { IS_EXPORT, useData } from '../data.js';
import { count, plain, seconds, signed } from '../formatting.js';
import { useKeys } from '../keys.js';
import { align, callsByRow, divergences, divergenceText, frameAfter, KINDS, readable, resultsByCall, samePrompt, turnsOf, wordDiff } from '../parts/alignment.js';
import { Board, Buttons, usePlayback } from '../parts/board.js';
import { Breadcrumbs, Notice, Table } from '../parts/page.js';
import { Outcome } from '../parts/verdict.js';
import { go, link } from '../route.js';
import { runOf } from '../runs.js';
import { Name, visible } from '../text.js';

export function SideBySide({ route, overview }) {
  const keys = [route.path.slice(1, 4), route.path.slice(4, 7)];
  const responses = keys.map(([run, task, repeat]) => useData(`runs/${run}/rollouts/${task}/${repeat}`));
  const up = link(['runs', keys[0][0]], { task: keys[0][1] });
  useKeys({ u: () => go(up) });
  const both = responses.every(({ value, stale }) => value && !stale);
  return html`
    <${Breadcrumbs} name="Two rollouts" title="Two rollouts side by side" steps=${[['Overview', link([])], [`Task ${keys[0][1]}`, up]]} />
    ${responses.map(({ error }) => error && html`<${Notice} error=${error} />`)}
    ${!both && responses.every(({ error }) => !error) && html`<${Notice} busy="Reading …" />`}
    ${both && html`<${Both} key=${keys.join()} rollouts=${responses.map(({ value }) => value)} overview=${overview} />`}`;
}

function Both({ rollouts, overview }) {
  const found = useMemo(() => {
    const [left, right] = rollouts.map((rollout) => turnsOf(rollout.events));
    const rows = align(left.turns, right.turns);
    return { left, right, rows, prompt: samePrompt(left.prompt, right.prompt), places: divergences(rows) };
  }, rollouts);
  const { rows, places, prompt } = found;
  const player = usePlayback(rows.length + 1); // position 0 is the start, position i the state after row i - 1
  const [at, setAt] = useState(-1); // which of the differences was visited last
  const root = useRef(null);
  const show = (row) => player.go(row + 1);
  useEffect(() => {
    if (places.length) show(places[0]);
  }, []);
  const visit = (index) => {
    if (index < 0 || index >= places.length) return;
    setAt(index);
    show(places[index]);
    requestAnimationFrame(() => {
      const row = root.current?.querySelector(`[data-row="${places[index]}"]`);
      row?.focus({ preventScroll: true });
      row?.scrollIntoView({ block: 'start' });
    });
  };
  const hasBoards = rollouts.some((rollout) => rollout.replay?.frames.length > 0);
  useKeys({ n: () => visit(at + 1), p: () => visit(Math.max(0, at - 1)), ...(hasBoards ? player.keys : {}) });
  return html`<div class="side-by-side" ref=${root}>
    <${Facts} rollouts=${rollouts} overview=${overview} />
    <p class="divergence" role="status">${divergenceText(prompt, rows)}</p>
    <div class="together differences row">
      <button onClick=${() => visit(Math.max(0, at - 1))} disabled=${at <= 0} title="Previous difference (p)">Previous</button>
      <button onClick=${() => visit(at + 1)} disabled=${at + 1 >= places.length} title="Next difference (n)">Next</button>
      <span class="small soft number">${places.length === 0 ? 'No turn differs in calls or results' : at < 0 ? `${count(places.length)} of ${count(rows.length)} turns differ` : `Difference ${at + 1} of ${places.length}`}</span>
    </div>
    ${hasBoards && html`<${PairOfBoards} rollouts=${rollouts} rows=${rows} player=${player} />`}
    <${Prompts} left=${found.left.prompt} right=${found.right.prompt} same=${prompt} />
    <${ComparedTurns} rows=${rows} current=${player.at - 1} show=${show} />
  </div>`;
}

function Facts({ rollouts, overview }) {
  return html`<${Table} label="Outcomes" names=${['rollout', 'outcome', 'reward', 'turns', 'calls', 'tokens', 'time', 'end']} left=${['rollout', 'outcome', 'end']}
    rows=${rollouts.map(({ run, line }) => [
      html`<a href=${link(['runs', run, 'tasks', line.task, line.repeat])}><${Name} value=${runOf(overview, run).name} />, task ${line.task}, repeat ${line.repeat}</a>`,
      html`<${Outcome} line=${line} />`, plain(line.reward), count(line.turns), count(line.tool_calls), count(line.output_tokens), seconds(line.seconds),
      html`<${Name} value=${line.end} />`,
    ])} />`;
}

function Prompts({ left, right, same }) {
  const [open, setOpen] = useState(false);
  return html`<details class="same" open=${open} onToggle=${(event) => setOpen(event.currentTarget.open)}>
    <summary class="small soft">${same ? 'The prompt, which is the same' : 'The prompts, which differ'}</summary>
    ${open && (same
      ? html`<div class="side">${left.map((event) => html`<${ComparedMessage} event=${event} />`)}</div>`
      : html`<div class="two">
          <div class="side first">${left.map((event, i) => html`<${ComparedMessage} event=${event} other=${right[i] ?? null} side="first" />`)}</div>
          <div class="side second">${right.map((event, i) => html`<${ComparedMessage} event=${event} other=${left[i] ?? null} side="second" />`)}</div>
        </div>`)}
  </details>`;
}

const PAGE_SIZE = 200;
const TITLES = { system: 'System', user: 'User', reasoning: 'Reasoning', answer: 'Answer', call: 'Tool call', result: 'Result', other: 'Other' };

/** @param {{rows: import('../parts/alignment.js').Row[], current: number, show: (row: number) => void}} props `current`: the row that the
 * boards show */
function ComparedTurns({ rows, current, show }) {
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

const Side = ({ name, side, events }) => html`<div class="side ${side}" role="group" aria-label=${name}>
  <p class="small soft narrow-only">${name}</p>
  ${events.length ? events.map(([event, other]) => html`<${ComparedMessage} event=${event} other=${other} side=${side} />`) : html`<p class="soft">–</p>`}
</div>`;

function ComparedMessage({ event, other = null, side = 'first' }) {
  const tool = event.speaker === 'call' || event.speaker === 'result';
  return html`<div class=${`event ${event.speaker}`}>
    <header><strong class="speaker">${TITLES[event.speaker] ?? event.speaker}</strong>
      ${event.name && html`<code><${Name} value=${event.name} /></code>`}
      ${event.reward !== null && html`<span class="badge number">reward ${signed(event.reward)}</span>`}</header>
    <${DiffText} text=${readable(event.text)} other=${other && readable(other.text)} side=${side} mono=${tool} />
  </div>`;
}

const MAX_CHARACTERS = 3000;

function DiffText({ text, other, side, mono }) {
  const [expanded, setExpanded] = useState(false);
  const pieces = useMemo(() => {
    if (other === null) return [{ kind: 'same', text }];
    const [first, second] = side === 'first' ? [text, other] : [other, text];
    return wordDiff(first, second).filter(({ kind }) => kind === 'same' || kind === side);
  }, [text, other, side]);
  const long = text.length > MAX_CHARACTERS * 1.1;
  return html`<div class=${`text ${mono ? 'mono' : ''}`} dir="auto">${(long && !expanded ? cut(pieces) : pieces).map((piece) => (piece.kind === 'same'
    ? visible(piece.text)
    : html`<mark>${visible(piece.text)}</mark>`))}${long && !expanded && ' …'}</div>
    ${long && html`<button class="quiet" onClick=${() => setExpanded(!expanded)}>
      ${expanded ? 'Show less' : `Show all ${count(text.length)} characters`}</button>`}`;
}

/** The pieces up to the longest text that is shown at first; later differences are shown on request. */
function cut(pieces) {
  const kept = [];
  let left = MAX_CHARACTERS;
  for (const piece of pieces) {
    if (left <= 0) break;
    kept.push({ ...piece, text: piece.text.slice(0, left) });
    left -= piece.text.length;
  }
  return kept;
}

function PairOfBoards({ rollouts, rows, player }) {
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

function outcome({ success, reward }) {
  return success === null ? (reward === null ? 'failed' : `reward ${plain(reward)}`) : success ? 'solved' : 'not solved';
}

export function Counterparts({ run, line }) {
  const { value } = useData(IS_EXPORT ? null : `runs/${run}/rollouts/${line.task}/${line.repeat}/counterparts`);
  const found = value?.counterparts ?? [];
  const href = (one) => sideBySide([run, line.task, line.repeat], [one.run, one.task, one.repeat]);
  useKeys({ s: () => (found.length > 0 ? go(href(found[0])) : false) });
  return found.length > 0 && html`<nav class="row small counterparts" aria-label="Side by side with">
    <span class="soft" title="s compares with the first">Side by side with</span>
    ${found.map((one) => html`<a class="button" href=${href(one)}>${one.kind === 'other file'
      ? html`<${Name} value=${one.name} />`
      : `${one.kind} (${one.repeat})`}<span class="soft">${' '}${outcome(one)}</span></a>`)}
  </nav>`;
}

/** The address of two rollouts, each given as [run, task, repeat]. */
export const sideBySide = (first, second) => link(['side-by-side', ...first, ...second]);
