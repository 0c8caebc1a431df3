/** Shows untrusted text from rollouts: verbatim, invisible characters as codes, long texts shortened. */
import { html, useState } from './vendor/htm-preact.js';
import { count } from './formatting.js';
import { pieces } from './parts/markdown.js';

/** Control characters (but not those of a line break, which may continue in the next piece), bidirectional marks, zero-width characters, tags, lone surrogates. */
const INVISIBLE = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb\u{e0000}-\u{e0fff}]|\r(?!\n|$)|\p{Cs}/gu;
const MAX_CHARACTERS = 4000;
const MAX_LINES = 60;
const MAX_NAME = 1000;

function code(letter) {
  const point = letter.codePointAt(0).toString(16);
  return point.length > 4 ? `\\u{${point}}` : `\\u${point.padStart(4, '0')}`;
}

/** The text in pieces, with invisible characters replaced by codes. @param {unknown} value */
export function visible(value) {
  const text = String(value ?? '');
  const parts = [];
  let from = 0;
  for (const match of text.matchAll(INVISIBLE)) {
    if (match.index > from) parts.push(text.slice(from, match.index));
    parts.push(html`<span class="invisible">${code(match[0])}</span>`);
    from = match.index + match[0].length;
  }
  parts.push(text.slice(from));
  return parts;
}

/** The text with invisible characters replaced by codes, as one string, for attributes and options. @param {unknown} value */
export const escapeInvisible = (value) => String(value ?? '').replace(INVISIBLE, code);

/** A short text on one line, such as a name or a reason. @param {{value: unknown}} props */
export function Name({ value }) {
  const text = String(value ?? '');
  return html`<bdi class="name">${visible(text.length > MAX_NAME ? `${text.slice(0, MAX_NAME)}…` : text)}</bdi>`;
}

/** The position at which to shorten the text, or -1. @param {string} text @param {number} lines @param {number} characters */
function cutAt(text, lines, characters) {
  let at = -1;
  for (let line = 0; line < lines; line += 1) {
    at = text.indexOf('\n', at + 1);
    if (at < 0 || at > characters) break;
  }
  if (at >= 0 && at <= characters) return at + 1 < text.length ? at : -1;
  const isWithinPair = /[\udc00-\udfff]/.test(text[characters]);
  return text.length > characters * 1.1 ? characters - Number(isWithinPair) : -1;
}

/** Prose as it is, with its boards in a monospaced font; other kinds of text are monospaced anyway. */
function render(text, kind) {
  if (kind !== 'prose') return visible(text);
  return pieces(text).map((piece, i) => html`${i > 0 && '\n'}<span class=${piece.grid ? 'grid' : ''}>${visible(piece.text)}</span>`);
}

/** A text of any length. `draw` renders a part of it instead of `kind`; its second argument is the text before the part. The page contains
 * every character of it. The character at `reveal` is visible even in a shortened text, and so are the last `tail` characters.
 * @param {{value: string, lines?: number, characters?: number, kind?: string, draw?: (text: string, before: string) => any, reveal?:
 * number, tail?: number}} props */
export function Text({ value, lines = MAX_LINES, characters = MAX_CHARACTERS, kind = 'prose', draw, reveal = -1, tail = 0 }) {
  const [expanded, setExpanded] = useState(false);
  const text = String(value ?? '');
  const possible = expanded ? -1 : cutAt(text, lines, characters);
  const cut = reveal >= possible ? -1 : possible;
  const end = cut < 0 ? text.length : Math.max(cut, endOfCut(text, tail));
  const show = (part, before = '') => (draw ? draw(part, before) : render(part, kind));
  return html`
    <div class=${`text ${kind} ${cut < 0 ? '' : 'cut'}`} dir="auto">${show(cut < 0 ? text : text.slice(0, cut))}</div>
    ${cut >= 0 && html`<button class="quiet" onClick=${() => setExpanded(true)}>Show all ${count(text.length)} characters</button>`}
    ${end < text.length && html`<div class="text ${kind}" dir="auto">${show(text.slice(end), text.slice(0, end))}</div>`}
    ${expanded && html`<button class="quiet" onClick=${() => setExpanded(false)}>Show less</button>`}`;
}

/** The start of the line from which at most `tail` characters follow. @param {string} text @param {number} tail */
function endOfCut(text, tail) {
  const from = text.length - tail;
  const line = text.indexOf('\n', from - 1) + 1;
  return tail && line > 0 ? line : from;
}
