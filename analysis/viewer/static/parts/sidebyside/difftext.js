/** A text in which the words that another text lacks are marked. */
import { html, useMemo, useState } from '../../vendor/htm-preact.js';
import { visible } from '../../text.js';
import { count } from '../../formatting.js';
import { wordDiff } from './worddiff.js';

const MAX_CHARACTERS = 3000;

/** @param {{text: string, other: string | null, side: string, mono: boolean}} props  `other`: null if there is nothing to compare with */
export function DiffText({ text, other, side, mono }) {
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
