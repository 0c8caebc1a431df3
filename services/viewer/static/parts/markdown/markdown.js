/** Shows the Markdown of a text without changing it. Every element is made here; links, images and HTML stay text. */
import { html, useMemo } from '../../vendor/htm-preact.js';
import { visible } from '../../text.js';
import { highlighted } from './highlight.js';
import { parse, textOf } from './parse.js';

/** Longer texts are shown as they are: their elements would slow the page down. */
const MAX_LENGTH = 100_000;
const TAGS = { em: 'em', strong: 'strong', both: 'strong', del: 'del', code: 'code', program: 'code' };

/** `fence`: the fence of the code in which the text begins; '' for none. @param {{text: string, fence?: string}} props */
export function Markdown({ text, fence = '' }) {
  return useMemo(() => (text.length > MAX_LENGTH ? visible(text) : parse(text, fence).map(element)), [text, fence]);
}

function element(part) {
  if (typeof part === 'string') return visible(part);
  const { kind, children, language = '', pad = 0 } = part;
  const inside = kind === 'program' ? program(textOf(children), language) : children.map(element);
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
