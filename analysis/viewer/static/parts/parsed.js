/** Shows a JSON object: short values on one line, long texts in separate blocks. */
import { html, useState } from '../vendor/htm-preact.js';
import { fetchText, IS_EXPORT } from '../data.js';
import { bytes, pluralize } from '../formatting.js';
import { Notice } from './page.js';
import { Name, Text } from '../text.js';
import { lastMatch } from '../textmatches.js';

const MAX_LENGTH = 50_000;
const MAX_KEYS = 30;
const MAX_INLINE = 120;
const LARGE_INTEGER = /[:[,]\s*-?\d{16,}\s*[,\]}]/;

/** Parses a text as a JSON object, or returns null, also if it has integers that a browser would round. @param {string} text @returns {Record<string, unknown> | null} */
export function parseObject(text) {
  if (text.length > MAX_LENGTH || !text.trimStart().startsWith('{') || LARGE_INTEGER.test(text)) return null;
  try {
    const value = JSON.parse(text);
    const keys = Object.keys(value);
    return keys.length > 0 && keys.length <= MAX_KEYS ? value : null;
  } catch {
    return null;
  }
}

function asText(value) {
  return typeof value === 'string' ? value : JSON.stringify(value);
}

/** Whether a name or a value contains the text, as they are shown. @param {Record<string, unknown>} value @param {string} find */
export function isInFields(value, find) {
  return Object.entries(value).some(([key, one]) => lastMatch(key, find) >= 0 || lastMatch(asText(one), find) >= 0);
}

/** The text `find` is visible even in shortened texts. @param {{value: Record<string, unknown>, find?: string}} props */
export function Parsed({ value, find = '' }) {
  const parts = Object.entries(value).map(([key, one]) => [key, asText(one)]);
  const long = (text) => text.includes('\n') || text.length > MAX_INLINE;
  return html`
    ${parts.filter(([, text]) => long(text)).map(([key, text]) => html`<div class="part">
      <span class="key"><${Name} value=${key} /></span><${Text} value=${text} kind="mono" lines=${25} reveal=${lastMatch(text, find)} />
    </div>`)}
    <dl class="inline">${parts.filter(([, text]) => !long(text)).map(([key, text]) => html`<div>
      <dt><${Name} value=${key} /></dt><dd><${Name} value=${text} /></dd>
    </div>`)}</dl>`;
}

export function Raw({ path, name }) {
  const [state, set] = useState({ text: null, value: null, error: null, copied: '' });
  if (IS_EXPORT) return null;
  const open = async (event) => {
    if (!event.currentTarget.open || state.text !== null) return;
    try {
      const text = await fetchText(path);
      set({ text, value: JSON.parse(text), error: null, copied: '' });
    } catch (error) {
      set({ text: null, value: null, error, copied: '' });
    }
  };
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(state.text);
      set({ ...state, copied: 'Copied.' });
    } catch {
      set({ ...state, copied: 'The browser does not allow this page to copy.' });
    }
  };
  return html`<section class="block" aria-label="Raw JSON"><details class="raw" onToggle=${open}>
    <summary><h2>Raw JSON</h2></summary>
    ${state.error && html`<${Notice} error=${state.error} />`}
    ${state.text !== null && html`
      <div class="row"><button onClick=${copy}>Copy</button><a class="button" href=${`api/${path}`} download=${name}>Download</a>
        <span class="small soft" role="status">${state.copied || bytes(new Blob([state.text]).size)}</span></div>
      <div class="tree"><${JsonTree} value=${state.value} open=${2} /></div>`}
  </details></section>`;
}

const PAGE_SIZE = 100;

function JsonTree({ name, value, open = 0 }) {
  const label = name !== undefined && html`<span class="key"><${Name} value=${name} /></span>`;
  if (typeof value !== 'object' || value === null) return html`<div class="leaf">${label}<${Leaf} value=${value} /></div>`;
  const entries = Object.entries(value);
  const size = pluralize(entries.length, Array.isArray(value) ? 'item' : 'field');
  if (!entries.length) return html`<div class="leaf">${label}<span class="soft">${size}</span></div>`;
  return html`<${Branch} label=${label} size=${size} entries=${entries} open=${open} />`;
}

function Branch({ label, size, entries, open }) {
  const [opened, setOpened] = useState(open > 0 && entries.length <= PAGE_SIZE);
  const [limit, setLimit] = useState(PAGE_SIZE);
  return html`<details open=${opened} onToggle=${(event) => {
    event.stopPropagation();
    setOpened(event.currentTarget.open);
  }}>
    <summary>${label}<span class="soft small">${size}</span></summary>
    ${opened && html`<div class="branch">
      ${entries.slice(0, limit).map(([key, value]) => html`<${JsonTree} key=${key} name=${key} value=${value} open=${open - 1} />`)}
      ${entries.length > limit && html`<button class="quiet" onClick=${() => setLimit(limit + 10 * PAGE_SIZE)}>
        ${entries.length - limit} more</button>`}
    </div>`}
  </details>`;
}

function Leaf({ value }) {
  if (typeof value !== 'string') return html`<span class="value number">${String(value)}</span>`;
  return html`<div class="value"><${Text} value=${value} lines=${12} characters=${500} /></div>`;
}

const MAX_FIELDS = 200;
const MAX_DEPTH = 4;

/** Paths and values of nested objects. @returns {[string, string][]} */
function flat(value, path, depth) {
  const nested = typeof value === 'object' && value !== null && !Array.isArray(value) && depth < MAX_DEPTH;
  if (!nested) return [[path, typeof value === 'string' ? value : JSON.stringify(value)]];
  const entries = Object.entries(value);
  if (!entries.length) return [[path, '{}']];
  return entries.flatMap(([key, one]) => flat(one, path ? `${path}.${key}` : key, depth + 1));
}

export function Facts({ facts }) {
  const all = flat(facts, '', 0).filter(([path]) => path);
  if (!all.length) return null;
  return html`<section class="block" aria-label="Facts"><h2>Facts</h2>
    <dl class="facts wide">${all.slice(0, MAX_FIELDS).map(([path, value]) => html`<div>
      <dt><${Name} value=${path} /></dt><dd><${Text} value=${value} lines=${6} characters=${300} /></dd>
    </div>`)}</dl>
    ${all.length > MAX_FIELDS && html`<p class="soft small">${all.length - MAX_FIELDS} more fields are in the JSON below.</p>`}
  </section>`;
}
