/** A chart drawn by the server, with its caption and a table of its numbers. */
import { html, useMemo, h, useState } from '../vendor/htm-preact.js';
import { Name } from '../text.js';

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

function placeOf(event) {
  const area = event.currentTarget.querySelector('.area').getBoundingClientRect();
  return Math.max(0, Math.min(1, (event.clientX - area.left) / area.width));
}

/** The text of the column at a position of the entire series. @param {Element} drawing @param {number} place */
function columnAt(drawing, place) {
  const marks = [...drawing.querySelectorAll('.mark')];
  const ends = (mark) => {
    const hit = mark.querySelector('.hit');
    return Number(hit.getAttribute('x')) + Number(hit.getAttribute('width'));
  };
  return (marks.find((mark) => ends(mark) >= 1000 * place) ?? marks.at(-1))?.querySelector('title').textContent;
}

/** `describe` returns the text for a position from 0 to 1 (default: the chart's own); `choose` is called with the position of a click.
 * @param {{chart: any, describe?: (place: number) => string, choose?: (place: number) => void}} props */
export function SeriesChart({ chart, describe, choose }) {
  const [at, setAt] = useState(null); // where the pointer is, from 0 to 1
  const drawing = useMemo(() => parseSvg(chart.svg), [chart.svg]);
  return html`<${Chart} chart=${chart}>
    <div class=${choose ? 'pointable' : ''} onPointerMove=${(event) => setAt(placeOf(event))} onPointerLeave=${() => setAt(null)}
      onClick=${(event) => choose?.(placeOf(event))}>${nodes(drawing)}</div>
    <p class="readout small number">${at === null ? '\u00a0' : describe ? describe(at) : columnAt(drawing, at)}</p>
  <//>`;
}

const TAGS = new Set(['svg', 'g', 'a', 'title', 'text', 'line', 'rect', 'circle', 'path', 'polyline', 'polygon']);
const ATTRIBUTES = new Set(['class', 'role', 'aria-label', 'tabindex', 'viewBox', 'preserveAspectRatio', 'width', 'height',
  'x', 'y', 'x1', 'x2', 'y1', 'y2', 'dx', 'cx', 'cy', 'r', 'rx', 'd', 'points']);

/** The root element, parsed in a separate document in which no script runs and nothing is loaded. @param {string} svg @returns {Element} */
const parseSvg = (svg) => new DOMParser().parseFromString(svg, 'text/html').body.firstElementChild;

/** The element as a preact node, so that focus and pointer survive a redrawn chart. @param {Element} element */
function nodes(element) {
  if (!TAGS.has(element?.localName)) return null;
  /** @type {Record<string, string>} */
  const props = {};
  for (const { name, value } of element.attributes) {
    if (ATTRIBUTES.has(name) || (name === 'href' && value.startsWith('#/'))) props[name] = value;
  }
  return h(element.localName, props, [...element.childNodes].map((child) => (child instanceof Text ? child.data : nodes(/** @type {Element} */ (child)))));
}
