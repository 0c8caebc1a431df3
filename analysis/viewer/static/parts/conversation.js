/** The conversation of an episode, in order, with speakers distinguished. */
import { html, useMemo, useRef, useState } from '../vendor/htm-preact.js';
import { pluralize, signed } from '../formatting.js';
import { useKeys } from '../keys.js';
import { useEpisode } from './board.js';
import { fewShotRange } from './episodeoutline.js';
import { highlighted } from './highlight.js';
import { openFence, parse, textOf } from './markdown.js';
import { Notice } from './page.js';
import { Parsed, isInFields, parseObject } from './parsed.js';
import { piecesOfConversation } from './tokenpieces.js';
import { TokenLegend, TokenText } from './tokens.js';
import { useSetting } from '../storage.js';
import { Name, Text, visible } from '../text.js';
import { matchPositions, lastMatch } from '../textmatches.js';

const PAGE_SIZE = 200;

/** `wanted`: the index of an event that is shown in any case. @param {{events: any[], current: number | null, show: ((call: number)
 * => void) | null, reading: import('./conversation.js').Reading, wanted: number}} props */
export function Conversation({ events, current, show, reading, wanted }) {
  const [limit, setLimit] = useState(PAGE_SIZE);
  const [reasoningOpen, setReasoningOpen] = useState(true);
  const calls = useMemo(() => callNumbers(events), [events]);
  const pieces = useMemo(() => (reading.probabilities ? piecesOfConversation(events) : null), [events, reading.probabilities]);
  const [from, until] = useMemo(() => fewShotRange(events), [events]);
  const firstFound = useMemo(() => events.findIndex((event) => isFound(event, reading.find)), [events, reading.find]);
  const lastFound = useMemo(() => events.findLastIndex((event) => isFound(event, reading.find)), [events, reading.find]);
  if (!events.length) return html`<${Notice} text="This rollout has no recorded conversation." />`;
  const hasReasoning = events.some((event) => event.speaker === 'reasoning');
  const end = Math.max(limit, wanted + 1, lastFound + 1);
  const message = (event, i) => html`<${Message} key=${i} index=${i} event=${event} call=${calls[i]} here=${calls[i] !== null && calls[i] === current}
    show=${show} reasoningOpen=${reasoningOpen} reading=${reading} pieces=${pieces?.[i] ?? null} />`;
  const messages = events.slice(0, end).map(message);
  const examples = messages.slice(from, until);
  const examplesOpen = (firstFound >= from && firstFound < until) || (wanted >= from && wanted < until);
  return html`
    ${hasReasoning && html`<p><button aria-pressed=${reasoningOpen} onClick=${() => setReasoningOpen(!reasoningOpen)}>
      Reasoning ${reasoningOpen ? 'open' : 'closed'}</button></p>`}
    ${reading.probabilities && html`<${TokenLegend} />`}
    ${messages.slice(0, from)}
    ${examples.length > 0 && html`<details class="examples" open=${examplesOpen}>
      <summary class="small soft">Examples in the prompt: ${pluralize(until - from, 'message')}</summary>${examples}
    </details>`}
    ${messages.slice(until)}
    ${events.length > end && html`<button onClick=${() => setLimit(end + 5 * PAGE_SIZE)}>
      Show more (${events.length - end} left)</button>`}`;
}

const isFound = (event, find) => find !== '' && matchPositions(event.text, find, 1).length > 0;

/** For each event, the number of the tool call that it is or whose result it is; otherwise null. */
function callNumbers(events) {
  const numbers = new Map();
  let count = 0;
  return events.map((event) => {
    if (event.speaker === 'call') {
      numbers.set(event.call, count);
      count += 1;
      return count - 1;
    }
    return event.speaker === 'result' ? (numbers.get(event.call) ?? null) : null;
  });
}

const TITLES = {
  system: 'System', user: 'User', reasoning: 'Reasoning', answer: 'Answer', call: 'Tool call', result: 'Result', other: 'Other', failure: 'Failed here',
};

/** Lines shown initially. */
const LINES = { system: 3, reasoning: 25, call: 25, result: 25 };
/** Of a long prompt the end is shown, too, because the question follows the instructions and the examples. */
const PROMPT_TAIL = 600;
const PROMPTS = new Set(['system', 'user']);
const WRITTEN = new Set(['reasoning', 'answer']);

/** `swapped`: prompts are rendered instead of what the model wrote. @typedef {{swapped: boolean, probabilities: boolean, find: string,
 * marked?: {event: number, piece: number} | null}} Reading how the user wants to read the conversation */

/** Shows prompts as plain text, what the model wrote as Markdown, and arguments and results that are a JSON object by field; a
 * button changes it. @param {{event: any, call: number | null, here: boolean, show: ((call: number) => void) | null,
 * reasoningOpen: boolean, reading: Reading, pieces: import('./tokenpieces.js').Piece[] | null, index: number}} props */
function Message({ event, call, here, show, reasoningOpen, reading, pieces, index }) {
  const { speaker } = event;
  const canShow = show && call !== null;
  const tool = speaker === 'call' || speaker === 'result';
  const fields = useMemo(() => (tool ? parseObject(event.text) : null), [event]);
  const [changed, setChanged] = useState(false);
  const found = useMemo(() => lastMatch(event.text, reading.find), [event, reading.find]);
  const asFields = useMemo(() => Boolean(fields) && !changed && (found < 0 || isInFields(fields, reading.find)), [fields, changed, found, reading.find]);
  const markedPiece = reading.marked?.event === index ? reading.marked.piece : -1;
  const hasTokens = reading.probabilities && pieces !== null;
  const asTokens = hasTokens && !changed;
  const isProse = PROMPTS.has(speaker) || WRITTEN.has(speaker);
  const rendered = isProse && !hasTokens && (WRITTEN.has(speaker) !== reading.swapped) !== changed;
  const [way, pressed] = hasTokens || fields ? ['Original text', changed] : ['Rendered', rendered];
  const body = html`<${Body} event=${event} found=${found} rendered=${rendered} />`;
  return html`<article class=${`event ${speaker} ${here ? 'here' : ''}`} tabindex="-1" data-call=${speaker === 'call' ? call : undefined}
    data-index=${index} aria-label=${`${TITLES[speaker] ?? speaker}${event.turn ? `, turn ${event.turn}` : ''}`} aria-current=${here ? 'step' : undefined}>
    <header>
      <strong class="speaker">${TITLES[speaker] ?? speaker}</strong>
      ${event.name && html`<code><${Name} value=${event.name} /></code>`}
      ${event.reward !== null && html`<span class="badge number">reward ${signed(event.reward)}</span>`}
      ${event.tokens && html`<span class="small soft">${pluralize(Math.max(event.tokens.generated.length, event.tokens.texts.length), 'token')}</span>`}
      <span class="where small soft">
        ${(fields || hasTokens || isProse) && html`<button class=${`quiet as ${changed ? 'changed' : ''}`} aria-pressed=${pressed} onClick=${() => setChanged(!changed)}>${way}</button>`}
        ${canShow && speaker === 'call' && html`<button class="quiet" onClick=${() => show(call)}>Show on the board</button>`}
        ${event.turn > 0 && speaker !== 'result' && html`<span class="number">turn ${event.turn}</span>`}
      </span>
    </header>
    ${speaker === 'reasoning'
      ? html`<details open=${reasoningOpen || found >= 0 || markedPiece >= 0}>
          <summary class="small soft">${pluralize(event.text.length, 'character')}</summary>
          ${asTokens ? html`<${TokenText} pieces=${pieces} marked=${markedPiece} find=${reading.find} />` : body}
        </details>`
      : asTokens
        ? html`<${TokenText} pieces=${pieces} marked=${markedPiece} find=${reading.find} />`
        : asFields
          ? html`<${Parsed} value=${fields} find=${reading.find} />`
          : body}
  </article>`;
}

function Body({ event, found, rendered }) {
  const { speaker, text, turn } = event;
  const kind = rendered ? 'markdown' : speaker === 'call' || speaker === 'result' ? 'mono' : 'prose';
  const draw = rendered ? (part, before) => html`<${Markdown} text=${part} fence=${openFence(before)} />` : undefined;
  return html`<${Text} value=${text} kind=${kind} draw=${draw} lines=${LINES[speaker] ?? 60} reveal=${found}
    tail=${speaker === 'user' && turn === 0 ? PROMPT_TAIL : 0} />`;
}

/** Longer texts are shown as they are: their elements would slow the page down. */
const MAX_LENGTH = 100_000;
/** The page takes longer than in proportion to draw more elements than this beside each other. */
const MAX_BESIDE = 100;
const TAGS = { em: 'em', strong: 'strong', both: 'strong', del: 'del', code: 'code', program: 'code' };

/** `fence`: the fence of the code in which the text begins; '' for none. @param {{text: string, fence?: string}} props */
export function Markdown({ text, fence = '' }) {
  return useMemo(() => (text.length > MAX_LENGTH ? visible(text) : elements(parse(text, fence))), [text, fence]);
}

function elements(parts) {
  if (parts.length <= MAX_BESIDE) return parts.map(element);
  const starts = Array.from({ length: Math.ceil(parts.length / MAX_BESIDE) }, (_, i) => i * MAX_BESIDE);
  return starts.map((start) => html`<span>${elements(parts.slice(start, start + MAX_BESIDE))}</span>`);
}

function element(part) {
  if (typeof part === 'string') return visible(part);
  const { kind, children, language = '', pad = 0 } = part;
  const inside = kind === 'program' ? program(textOf(children), language) : elements(children);
  if (kind === 'block') return html`<pre class="code sheet" tabindex="0" aria-label="Code">${inside}</pre>`;
  if (kind === 'table') return html`<span class="table sheet" tabindex="0" role="group" aria-label="Table">${inside}</span>`;
  return html`<${TAGS[kind] ?? 'span'} class=${kind} data-pad=${pad > 0 ? ' '.repeat(pad) : undefined}>${inside}<//>`;
}

function program(text, language) {
  const tree = highlighted(text, language);
  return tree ? tree.children.map(scope) : visible(text);
}

function scope(child) {
  return typeof child === 'string' ? visible(child) : html`<span class=${`code-${child.scope}`}>${child.children.map(scope)}</span>`;
}

/** Chooses what is rendered as Markdown; the rest is plain text. */
export function RenderedButton({ swapped, setSwapped }) {
  return html`<button aria-pressed=${swapped} title="What is rendered as Markdown; the rest is plain text (m)" onClick=${() => setSwapped(!swapped)}>
    Rendered: ${swapped ? 'prompts' : 'answers'}</button>`;
}

/** An episode of which the page shows nothing else: its conversation beside its board. @param {{events: any[], replay: any, label: string}} props */
export function EpisodeView({ events, replay, label }) {
  const conversation = useRef(null);
  const { aside, current, show, keys } = useEpisode({ events, replay }, conversation);
  const [swapped, setSwapped] = useSetting('swapped', false);
  const reading = useMemo(() => ({ swapped, probabilities: false, find: '' }), [swapped]);
  useKeys({ m: () => setSwapped(!swapped), ...keys });
  return html`<div class=${aside ? 'beside' : ''}>
    ${aside}
    <section class="conversation" aria-label=${label} ref=${conversation}>
      <div class="reading row"><${RenderedButton} swapped=${swapped} setSwapped=${setSwapped} /></div>
      <${Conversation} events=${events} current=${current} show=${show} reading=${reading} wanted=${-1} />
    </section>
  </div>`;
}
