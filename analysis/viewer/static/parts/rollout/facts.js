/** The remaining fields of a row. */
import { html } from '../../vendor/htm-preact.js';
import { Name, Text } from '../../text.js';

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

/** @param {{facts: Record<string, unknown>}} props */
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
