/** Shows Markdown from rollouts. Every element is made here; links, images and HTML in the text are shown as text. */
import { html, useMemo } from '../../vendor/htm-preact.js';
import { visible } from '../../text.js';
import { Code } from './code.js';
import { Formula } from './formula.js';
import { parseMarkdown } from './parse.js';
import { segments } from './segments.js';

/** Longer texts are shown as they are. */
const MAX_LENGTH = 40_000;
const MAX_DEPTH = 12;
const MAX_FORMULAS = 200;

/** @param {{text: string}} props */
export function Markdown({ text }) {
  return useMemo(() => (text.length > MAX_LENGTH ? html`<div class="verbatim">${visible(text)}</div>` : drawn(text)), [text]);
}

function drawn(text) {
  const limits = { formulas: MAX_FORMULAS };
  return segments(text).map((segment) => {
    if (segment.kind === 'code') return html`<${Code} text=${segment.text} language=${segment.language} />`;
    if (segment.kind === 'math') return formulaOf({ text: segment.text, raw: `$$${segment.text}$$`, display: true }, limits);
    if (segment.kind === 'grid') return html`<div class="verbatim"><span class="grid">${visible(segment.text)}</span></div>`;
    const tree = segment.text.trim() ? parseMarkdown(segment.text) : [];
    return tree ? blocks(tree, limits, 0) : html`<div class="verbatim">${visible(segment.text)}</div>`;
  });
}

function formulaOf({ text, raw, display }, limits) {
  limits.formulas -= 1;
  return limits.formulas < 0 ? visible(raw) : html`<${Formula} text=${text} source=${raw} display=${display} />`;
}

function blocks(tokens, limits, depth) {
  return tokens.map((token) => block(token, limits, depth));
}

function block(token, limits, depth) {
  if (depth > MAX_DEPTH) return html`<div class="verbatim">${visible(token.raw)}</div>`;
  switch (token.type) {
    case 'space': case 'def': return token.type === 'def' ? html`<p>${visible(token.raw)}</p>` : null;
    case 'paragraph': return html`<p>${inlines(token.tokens, limits, depth)}</p>`;
    case 'heading': return html`<p class=${`heading level${token.depth}`}>${inlines(token.tokens, limits, depth)}</p>`;
    case 'hr': return html`<hr />`;
    case 'blockquote': return html`<blockquote>${blocks(token.tokens, limits, depth + 1)}</blockquote>`;
    case 'code': return html`<${Code} text=${token.text} language=${String(token.lang ?? '').toLowerCase()} />`;
    case 'list': return list(token, limits, depth);
    case 'table': return table(token, limits, depth);
    case 'html': return html`<div class="verbatim">${visible(token.raw.replace(/\n+$/, ''))}</div>`;
    default: return inline(token, limits, depth);
  }
}

function list(token, limits, depth) {
  const items = token.items.map((item) => html`<li>${blocks(item.tokens, limits, depth + 1)}</li>`);
  return token.ordered ? html`<ol start=${Number(token.start) || 1}>${items}</ol>` : html`<ul>${items}</ul>`;
}

function table(token, limits, depth) {
  const cell = (one, tag, i) => html`<${tag} class=${token.align[i] ? `to-${token.align[i]}` : ''}>${inlines(one.tokens, limits, depth)}<//>`;
  return html`<div class="table" tabindex="0" role="region" aria-label="Table"><table>
    <thead><tr>${token.header.map((one, i) => cell(one, 'th', i))}</tr></thead>
    <tbody>${token.rows.map((row) => html`<tr>${row.map((one, i) => cell(one, 'td', i))}</tr>`)}</tbody>
  </table></div>`;
}

function inlines(tokens, limits, depth) {
  return (tokens ?? []).map((token) => inline(token, limits, depth + 1));
}

function inline(token, limits, depth) {
  if (depth > MAX_DEPTH) return visible(token.raw);
  switch (token.type) {
    case 'strong': return html`<strong>${inlines(token.tokens, limits, depth)}</strong>`;
    case 'em': return html`<em>${inlines(token.tokens, limits, depth)}</em>`;
    case 'del': return html`<del>${inlines(token.tokens, limits, depth)}</del>`;
    case 'codespan': return html`<code>${visible(token.text)}</code>`;
    case 'br': return html`<br />`;
    case 'escape': return visible(token.text);
    case 'formula': return formulaOf(token, limits);
    case 'checkbox': return token.checked ? '☑ ' : '☐ ';
    case 'link': return link(token, limits, depth);
    case 'image': return html`<span class="soft">[image: ${visible(token.text)} ${visible(token.href)}]</span>`;
    case 'text': return token.tokens ? inlines(token.tokens, limits, depth) : visible(token.text);
    default: return visible(token.raw);
  }
}

/** A link's text and address. It cannot be followed, because a model or a web page wrote the address. */
function link(token, limits, depth) {
  const address = String(token.href ?? '');
  if (token.raw === address || token.text === address) return html`<span class="address">${visible(token.raw)}</span>`;
  return html`${inlines(token.tokens, limits, depth)} <span class="address">(${visible(address)})</span>`;
}
