/** Shows code with its keywords, strings and comments distinguished. */
import { html, useMemo } from '../../vendor/htm-preact.js';
import { visible } from '../../text.js';
import { highlighted } from './highlight.js';

/** @param {{text: string, language: string}} props */
export function Code({ text, language }) {
  const tree = useMemo(() => highlighted(text, language), [text, language]);
  return html`<pre class="code" tabindex="0" aria-label=${language ? `Code: ${language}` : 'Code'}><code>${tree ? nodes(tree.children) : visible(text)}</code></pre>`;
}

function nodes(children) {
  return children.map((child) => (typeof child === 'string'
    ? visible(child)
    : html`<span class=${`code-${child.scope}`}>${nodes(child.children)}</span>`));
}
