/** The tokens of an episode's model calls: masked prompt tokens, and generated tokens with their log-probabilities. */
import { html, useMemo, useState, useEffect, useRef } from '../vendor/htm-preact.js';
import { count, percent, plain, pluralize } from '../formatting.js';
import { SeriesChart } from './charts.js';
import { Table } from './page.js';
import { leastLikely } from './tokenpieces.js';
import { Name, escapeInvisible, visible } from '../text.js';
import { lastMatch } from '../textmatches.js';

const INITIAL_TURNS = 20;

/** The length of the common prefix of a prompt and the tokens of the previous turn. @param {number[]} prompt @param {number[]} previous */
function commonPrefix(prompt, previous) {
  const most = Math.min(prompt.length, previous.length);
  let same = 0;
  while (same < most && prompt[same] === previous[same]) same += 1;
  return same;
}

/** The model calls with recorded tokens. @param {any[]} events */
function turnsOf(events) {
  let previous = [];
  let segment = 0;
  return events.filter((event) => event.tokens?.generated.length).map((event, i) => {
    const { prompt, generated, trace } = event.tokens;
    const seen = commonPrefix(prompt, previous);
    const broken = i > 0 && seen < previous.length;
    segment = typeof trace?.segment === 'number' ? trace.segment : segment + Number(broken);
    const turn = { ...event.tokens, turn: event.turn, seen, broken, segment, lost: previous.length - seen };
    previous = [...prompt, ...generated];
    return turn;
  });
}

export function TokenTurns({ events, chart }) {
  const turns = useMemo(() => turnsOf(events), [events]);
  const [limit, setLimit] = useState(INITIAL_TURNS);
  const all = useMemo(() => turns.flatMap((turn) => turn.log_probs), [turns]);
  const describe = (position) => {
    const i = Math.round(position * (all.length - 1));
    return `token ${count(i)}: log-probability ${plain(all[i])}, ${probability(all[i])}`;
  };
  if (!turns.length) return null;
  const generated = turns.reduce((sum, turn) => sum + turn.generated.length, 0);
  const mean = all.reduce((sum, value) => sum + value, 0) / (all.length || 1);
  const covered = all.length < generated ? ` of the ${count(all.length)} with one` : '';
  const likelihood = all.length ? `mean log-probability${covered} ${plain(mean)}, perplexity ${perplexity(mean)}` : 'no log-probabilities';
  const masked = turns.reduce((sum, turn) => sum + turn.prompt.length - turn.seen, 0);
  return html`<section class="block tokens" aria-label="Tokens"><h2>Tokens</h2>
    <p class="small soft">${pluralize(generated, 'generated token')} in ${pluralize(turns.length, 'model call')},
      ${` ${pluralize(masked, 'masked prompt token')}`}; ${likelihood}.</p>
    <${TokenLegend} text="id" other=${['masked', 'masked: a prompt token, not trained on']} />
    ${chart && html`<${SeriesChart} chart=${chart} describe=${describe} />`}
    ${turns.slice(0, limit).map((turn, i) => html`<${Turn} key=${i} turn=${turn} first=${i === 0} />`)}
    ${turns.length > limit && html`<button onClick=${() => setLimit(turns.length)}>
      Show the other ${turns.length - limit} model calls</button>`}
  </section>`;
}

/** e to the power of the negative mean. Engines write -9999 for a probability of 0, for which it exceeds all numbers. */
function perplexity(mean) {
  const value = Math.exp(-mean);
  return Number.isFinite(value) ? plain(value) : 'over 1e308';
}

function Turn({ turn, first }) {
  const mismatch = turn.trace?.break;
  const reason = mismatch && typeof mismatch === 'object' ? mismatch.reason : mismatch;
  const known = first ? '' : `, ${count(turn.seen)} of them from the previous turn`;
  const trainingNote = turn.trained ? '' : ', not trained on';
  const sizes = `${count(turn.prompt.length)} prompt tokens${known}; ${count(turn.generated.length)} generated${trainingNote}`;
  return html`<article class=${`turn ${turn.broken || mismatch ? 'broken' : ''}`} aria-label=${`Tokens of turn ${turn.turn}`}>
    <header class="row small"><strong>Turn ${turn.turn}</strong>
      <span class="badge soft">Segment ${turn.segment}</span>
      ${typeof turn.trace?.way === 'string' && html`<span class="badge soft"><${Name} value=${turn.trace.way} /></span>`}
      ${(turn.broken || mismatch) && html`<span class="badge bad">Prefix mismatch${reason && html`: <${Name} value=${reason} />`}</span>`}
      <span class="soft">${sizes}</span>
    </header>
    ${turn.broken && html`<p class="small bad">The prompt differs from the previous turn at token ${count(turn.seen)};
      ${` ${pluralize(turn.lost, 'token')}`} of that turn ${turn.lost === 1 ? 'is' : 'are'} missing.</p>`}
    <${TokenStrip} prompt=${turn.prompt} seen=${first ? 0 : turn.seen} generated=${turn.generated}
      logProbs=${turn.log_probs} texts=${turn.texts} trained=${turn.trained} />
  </article>`;
}

const MAX_PROMPT = 24;
const MAX_GENERATED = 600;

function TokenStrip({ prompt, seen, generated, logProbs, texts, trained }) {
  const [expanded, setExpanded] = useState(false);
  const from = expanded ? 0 : Math.max(seen, prompt.length - MAX_PROMPT);
  const until = expanded ? generated.length : Math.min(generated.length, MAX_GENERATED);
  const cut = from > 0 || until < generated.length;
  const describe = (i) => {
    const position = i - prompt.length;
    if (position < 0) return `prompt token ${i}: id ${prompt[i]}, masked`;
    const text = texts[position] ? ` ${escapeInvisible(JSON.stringify(texts[position]))}` : '';
    return `generated token ${position}: id ${generated[position]}${text}, ${likelihood(logProbs[position])}, ${trained ? 'trained on' : 'masked'}`;
  };
  const last = prompt.length + until - 1;
  const [at, , handlers] = useSelectedToken({ first: from, last, start: prompt.length - 1 });
  const chip = (i, id, kind) => html`<span class=${`token ${kind} ${i === at ? 'at' : ''}`} data-at=${i} title=${describe(i)}>${id}</span>`;
  return html`
    <div class="ids" tabindex="0" role="group" aria-label="Token ids; use the arrow keys to move"
      ...${handlers}>
      ${from > 0 && html`<span class="soft small">${count(from)} earlier tokens … </span>`}
      ${prompt.slice(from).map((id, i) => chip(from + i, id, 'masked'))}
      ${generated.slice(0, until).map((id, i) => chip(prompt.length + i, id, trained ? classOf(logProbs[i]) : 'masked'))}
      ${generated.length > until && html`<span class="soft small"> … ${count(generated.length - until)} more</span>`}
    </div>
    <div class="foot"><p class="readout small number" aria-live="polite">${at >= 0 ? describe(at) : '\u00a0'}</p>
    ${(cut || expanded) && html`<button class="quiet" onClick=${() => setExpanded(!expanded)}>
      ${expanded ? 'Show less' : `Show all ${count(prompt.length + generated.length)} tokens`}</button>`}</div>`;
}

const probability = (logProb, digits = 1) => percent(Math.exp(Math.min(0, logProb)), digits);

function likelihood(logProb) {
  return typeof logProb === 'number' ? `log-probability ${plain(logProb)}, ${percent(Math.exp(logProb))}` : 'no log-probability';
}

const MAX_PIECES = 1500;

/** `marked` is the index of a piece to scroll to, or -1. The text `find` is visible even among many tokens.
 * @param {{pieces: import('./tokenpieces.js').Piece[], marked?: number, find?: string}} props */
export function TokenText({ pieces, marked = -1, find = '' }) {
  const [expanded, setExpanded] = useState(false);
  const text = useRef(null);
  const isFoundLate = useMemo(() => pieces.length > MAX_PIECES && find !== '' && isAfter(pieces, find), [pieces, find]);
  const shown = expanded || isFoundLate || marked >= MAX_PIECES ? pieces : pieces.slice(0, MAX_PIECES);
  const [at, setAt, handlers] = useSelectedToken({ first: 0, last: shown.length - 1 });
  useEffect(() => {
    if (marked < 0) return;
    setAt(marked);
    // After the page has scrolled to the event.
    requestAnimationFrame(() => requestAnimationFrame(() => requestAnimationFrame(() => {
      text.current?.focus({ preventScroll: true });
      text.current?.querySelector(`[data-at="${marked}"]`)?.scrollIntoView({ block: 'center' });
    })));
  }, [marked]);
  return html`
    <div class="pointed"><p class="readout small number" aria-live="polite">${at >= 0 && at < shown.length && html`<${Description} piece=${shown[at]} />`}</p></div>
    <div class="text tokentext" dir="auto" tabindex="0" ref=${text} role="group" aria-label="Tokens; use the arrow keys to move"
      onMouseLeave=${() => setAt(marked)} ...${handlers}>${shown.map((piece, i) => html`<span
        class=${`token ${classOf(piece.logProb)} ${i === at ? 'at' : ''}`} data-at=${i}>${written(piece.text)}</span>`)}</div>
    ${shown.length < pieces.length && html`<button class="quiet" onClick=${() => setExpanded(true)}>Show all ${count(pieces.length)} tokens</button>`}`;
}

function isAfter(pieces, find) {
  const at = lastMatch(pieces.map((piece) => piece.text).join(''), find);
  return at + find.length > pieces.slice(0, MAX_PIECES).reduce((sum, piece) => sum + piece.text.length, 0);
}

/** The text of a token, with line breaks marked by the style, so that a token without letters can be seen. */
function written(text) {
  return text.split('\n').map((line, i) => html`${i > 0 && html`<span class="break">${'\n'}</span>`}${visible(line)}`);
}

function Description({ piece }) {
  const { text, ids, logProb, tops } = piece;
  const together = ids.length > 1 ? `${ids.length} tokens together, ` : '';
  const likelihood = logProb === undefined ? 'no log-probability' : `${probability(logProb)}, log-probability ${plain(logProb)}`;
  return html`<code class="piece">${visible(JSON.stringify(text))}</code> ${together}${likelihood}${ids.length > 0 && `, id ${ids.join(' ')}`}
    ${tops.length > 0 && html`; most likely: ${tops.map(([other, value], i) => html`${i > 0 && ', '}<code class="piece">${visible(JSON.stringify(other))}</code> ${probability(value)}`)}`}`;
}

export function TokenLegend({ text = 'token', other = ['unknown', 'not recorded'] }) {
  return html`<ul class="legend" aria-label="Probabilities of tokens">${[...CLASSES.map(({ name, label }) => [name, label]), other].map(([name, label]) => html`
    <li><span class=${`token ${name}`}>${text}</span>${label}</li>`)}</ul>`;
}

/** The index of the selected token (-1: none), a function that sets it, and the handlers for the element that contains the tokens, each of
 * which has its index as `data-at`. The arrow keys stay from `first` to `last`; before a token is selected, they start at `start`.
 * @param {{first: number, last: number, start?: number}} bounds
 * @returns {[number, (at: number) => void, {onMouseOver: any, onClick: any, onKeyDown: any}]} */
function useSelectedToken({ first, last, start = -1 }) {
  const [at, setAt] = useState(-1);
  const select = (event) => {
    const found = event.target.closest('[data-at]');
    if (found) setAt(Number(found.dataset.at));
  };
  const move = (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    event.preventDefault();
    setAt(Math.max(first, Math.min(last, (at < 0 ? start : at) + by)));
  };
  return [at, setAt, { onMouseOver: select, onClick: select, onKeyDown: move }];
}

const FEW = 10;
const MANY = 100;

export function WorstTokens({ events, go }) {
  const [most, setMost] = useState(FEW);
  const all = useMemo(() => leastLikely(events, MANY), [events]);
  if (!all.length) return null;
  const instead = all.some((one) => one.tops.length > 0) ? ['most likely instead'] : [];
  return html`<section class="block worst" aria-label="Least likely tokens"><h2>Least likely tokens</h2>
    <${Table} label="Table of the least likely tokens" names=${['token in context', 'probability', 'log-probability', ...instead, 'turn']} left=${instead}
      rows=${all.slice(0, most).map((one) => [
        html`<button class="quiet context" onClick=${() => go(one.call, one.position)}
          aria-label=${`Go to token ${one.position + 1} of turn ${one.turn}`}><${InContext} one=${one} /></button>`,
        probability(one.logProb, one.logProb < Math.log(0.001) ? 3 : 1), plain(one.logProb), ...instead.map(() => html`<${Alternatives} one=${one} />`), one.turn,
      ])} />
    ${all.length > FEW && html`<button class="quiet" onClick=${() => setMost(most === FEW ? MANY : FEW)}>
      ${most === FEW ? `Show ${count(all.length)}` : 'Show less'}</button>`}
  </section>`;
}

export function InContext({ one, logProb = one.logProb, kind = 'mono' }) {
  const marked = (text) => visible(text.replaceAll('\n', '↵'));
  if (!one.text) return html`<span class=${`token ${classOf(logProb)}`}>id ${one.id}</span>`;
  return html`<bdi class=${kind}><span class="soft">${marked(one.before)}</span><span class=${`token ${classOf(logProb)}`}>${marked(one.text)}</span><span class="soft">${marked(one.after)}</span></bdi>`;
}

function Alternatives({ one }) {
  const others = one.tops.filter(([text]) => text !== one.text).slice(0, 3);
  return others.map(([text, logProb], i) => html`${i > 0 && ', '}<code class="piece">${visible(JSON.stringify(text))}</code> ${probability(logProb)}`);
}

/** The lower log-probability bound of each class. Less likely tokens also have a stronger underline. */
const CLASSES = [
  { name: 'sure', from: Math.log(0.9), label: 'over 90%' },
  { name: 'likely', from: Math.log(0.5), label: '50 to 90%' },
  { name: 'open', from: Math.log(0.1), label: '10 to 50%' },
  { name: 'unlikely', from: Math.log(0.01), label: '1 to 10%' },
  { name: 'rare', from: -Infinity, label: 'under 1%' },
];

function classOf(logProb) {
  if (typeof logProb !== 'number' || Number.isNaN(logProb)) return 'unknown';
  return CLASSES.find((one) => logProb >= one.from).name;
}
