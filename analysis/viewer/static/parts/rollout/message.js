/** One event of a conversation. */
import { html, useMemo, useState } from '../../vendor/htm-preact.js';
import { Name, Text } from '../../text.js';
import { lastMatch } from '../../textmatches.js';
import { pluralize, signed } from '../../formatting.js';
import { Markdown } from '../markdown/markdown.js';
import { openFence } from '../markdown/segments.js';
import { Parsed, isInFields, parseObject } from './parsed.js';
import { TokenText } from './tokentext.js';

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

/**
 * Shows prompts as plain text, what the model wrote as Markdown, and arguments and results that are a JSON object by field; a button changes it.
 * @param {{event: any, call: number | null, here: boolean, show: ((call: number) => void) | null, reasoningOpen: boolean,
 *   reading: Reading, pieces: import('./tokenpieces.js').Piece[] | null, index: number}} props
 */
export function Message({ event, call, here, show, reasoningOpen, reading, pieces, index }) {
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

/** The text of an event. */
function Body({ event, found, rendered }) {
  const { speaker, text, turn } = event;
  const kind = rendered ? 'markdown' : speaker === 'call' || speaker === 'result' ? 'mono' : 'prose';
  const draw = rendered ? (part, before) => html`<${Markdown} text=${part} fence=${openFence(before)} />` : undefined;
  return html`<${Text} value=${text} kind=${kind} draw=${draw} lines=${LINES[speaker] ?? 60} reveal=${found}
    tail=${speaker === 'user' && turn === 0 ? PROMPT_TAIL : 0} />`;
}
