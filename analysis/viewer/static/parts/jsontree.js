/** A collapsible JSON tree that renders a branch when it is opened. */
import { html, useState } from '../vendor/htm-preact.js';
import { Name, Text } from '../text.js';
import { pluralize } from '../formatting.js';

const PAGE_SIZE = 100;

/** @param {{name?: string, value: unknown, open?: number}} props */
export function JsonTree({ name, value, open = 0 }) {
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
