/** A drawing with its caption, and the same numbers as a table for those who want or need them so. */
import { html } from '../vendor/htm-preact.js';
import { Name } from '../text.js';

/**
 * @param {{title: string, caption?: any, heads?: string[], rows?: any[][], children?: any}} props
 */
export function Figure({ title, caption, heads, rows, children }) {
  return html`<figure class="figure">
    <h3>${title}</h3>
    ${children}
    ${caption && html`<figcaption>${caption}</figcaption>`}
    ${rows && html`<details class="numbers"><summary>numbers</summary>
      <div class="table" tabindex="0" role="region" aria-label=${`${title}: numbers`}><table>
        <thead><tr>${heads.map((head) => html`<th scope="col">${head}</th>`)}</tr></thead>
        <tbody>${rows.map(([name, ...cells]) => html`<tr>
          <th scope="row"><${Name} value=${name} /></th>${cells.map((cell) => html`<td>${cell}</td>`)}
        </tr>`)}</tbody>
      </table></div>
    </details>`}
  </figure>`;
}
