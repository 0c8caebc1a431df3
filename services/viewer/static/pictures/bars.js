/** Names with a bar each: a table that is a drawing. */
import { html } from '../vendor/htm-preact.js';
import { Name, spelled } from '../text.js';

/**
 * @typedef {{name: string, value: number, says: any, href?: string}} Row
 * @param {{caption: string, heads: [string, string], rows: Row[], most?: number}} props
 */
export function Bars({ caption, heads, rows, most }) {
  const whole = most || Math.max(...rows.map((row) => row.value), 0) || 1;
  return html`<div class="table"><table class="wide bars">
    <caption class="hidden">${caption}</caption>
    <thead class="hidden"><tr><th scope="col">${heads[0]}</th><th scope="col">share</th><th scope="col">${heads[1]}</th></tr></thead>
    <tbody>${rows.map((row) => html`<tr>
      <th scope="row" title=${spelled(row.name)}>
        ${row.href ? html`<a href=${row.href}><${Name} value=${row.name} /></a>` : html`<${Name} value=${row.name} />`}
      </th>
      <td class="bar-cell"><svg aria-hidden="true" preserveAspectRatio="none" viewBox="0 0 100 10">
        <rect class="column" x="0" y="1" height="8" rx="0" width=${Math.max(0.4, (row.value / whole) * 100)} />
      </svg></td>
      <td>${row.says}</td>
    </tr>`)}</tbody>
  </table></div>`;
}
