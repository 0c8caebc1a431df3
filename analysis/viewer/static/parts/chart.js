/** A chart drawn by the server, with its caption and a table of its numbers. */
import { html, useMemo } from '../vendor/htm-preact.js';
import { nodes, parseSvg } from '../svgnodes.js';
import { Name } from '../text.js';

/** @param {{chart: any, children?: any}} props `children` is shown instead of the plain drawing */
export function Chart({ chart, children }) {
  const { title, svg, caption, links, numbers } = chart;
  const drawn = useMemo(() => nodes(parseSvg(svg)), [svg]);
  return html`<figure class="figure">
    <h3>${title}</h3>
    ${children ?? drawn}
    <figcaption><${Name} value=${caption} />${links.map((link) => html` <a href=${link.href}>${link.text}</a>`)}</figcaption>
    ${numbers && html`<details class="numbers"><summary>Numbers</summary>
      <div class="table" tabindex="0" role="region" aria-label=${`${title}: numbers`}><table>
        <thead><tr>${numbers.head.map((head) => html`<th scope="col">${head}</th>`)}</tr></thead>
        <tbody>${numbers.rows.map((row) => html`<${NumberRow} row=${row} />`)}</tbody>
      </table></div>
    </details>`}
  </figure>`;
}

function NumberRow({ row }) {
  const [first, ...others] = row.cells;
  const name = html`<${Name} value=${first} />`;
  return html`<tr>
    <th scope="row">${row.href ? html`<a href=${row.href}>${name}</a>` : name}</th>${others.map((cell) => html`<td>${cell}</td>`)}
  </tr>`;
}
