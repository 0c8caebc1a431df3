/** Shows a JSON object: short values on one line, long texts in separate blocks. */
import { html, useState } from '../vendor/htm-preact.js';
import { IS_EXPORT, useData } from '../data.js';
import { loading } from './page.js';
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

const asText = (value) => (typeof value === 'string' ? value : JSON.stringify(value));

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
  const [open, setOpen] = useState(false);
  const { value, error } = useData(open ? path : null);
  return !IS_EXPORT && html`<section class="block" aria-label="Raw JSON"><details class="raw" onToggle=${(event) => setOpen(event.currentTarget.open)}>
    <summary><h2>Raw JSON</h2></summary>
    ${open && loading(value, error, 'Reading …')}
    ${value && html`<p><a class="button" href=${`api/${path}`} download=${name}>Download</a></p><${Text} value=${JSON.stringify(value, null, 2)} kind="mono" />`}
  </details></section>`;
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
