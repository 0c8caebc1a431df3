/** Shows the Markdown of a text without changing it. Every element is made here; links, images and HTML stay text. */
import { html, useMemo } from '../../vendor/htm-preact.js';
import { visible } from '../../text.js';
import { highlighted } from './highlight.js';
import { parse, textOf } from './parse.js';

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

/** Code with its keywords, strings and comments distinguished. */
function program(text, language) {
  const tree = highlighted(text, language);
  return tree ? tree.children.map(scope) : visible(text);
}

function scope(child) {
  return typeof child === 'string' ? visible(child) : html`<span class=${`code-${child.scope}`}>${child.children.map(scope)}</span>`;
}
