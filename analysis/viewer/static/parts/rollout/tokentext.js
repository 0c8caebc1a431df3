/** What the model wrote in one event, token by token, coloured by probability. */
import { html, useEffect, useMemo, useRef, useState } from '../../vendor/htm-preact.js';
import { visible } from '../../text.js';
import { lastMatch } from '../../textmatches.js';
import { count, percent, plain } from '../../formatting.js';
import { useSelectedToken } from './selectedtoken.js';
import { CLASSES, classOf } from './tokenclasses.js';

const MAX_PIECES = 1500;

/**
 * `marked` is the index of a piece to scroll to, or -1. The text `find` is visible even among many tokens.
 * @param {{pieces: import('./tokenpieces.js').Piece[], marked?: number, find?: string}} props
 */
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

/** Whether the text ends after the pieces that are shown at first. */
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
  const likelihood = logProb === undefined ? 'no log-probability' : `${percent(Math.exp(Math.min(0, logProb)))}, log-probability ${plain(logProb)}`;
  return html`<code class="piece">${visible(JSON.stringify(text))}</code> ${together}${likelihood}${ids.length > 0 && `, id ${ids.join(' ')}`}
    ${tops.length > 0 && html`; most likely: ${tops.map(([other, value], i) => html`${i > 0 && ', '}<code class="piece">${visible(JSON.stringify(other))}</code> ${percent(Math.exp(Math.min(0, value)))}`)}`}`;
}

/** What the colours mean. */
export function TokenLegend() {
  return html`<ul class="legend" aria-label="Probabilities of tokens">
    ${CLASSES.map(({ name, label }) => html`<li><span class=${`token ${name}`}>token</span>${label}</li>`)}
    <li><span class="token unknown">token</span>not recorded</li>
  </ul>`;
}
