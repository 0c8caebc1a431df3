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

const ALL = [0, 1];
const CLICK = 0.01; // a drag over less of the width is a click

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

/** `describe` returns the text for a position from 0 to 1 (default: the chart's own). `tick` labels a position and enables zooming.
 * `choose` is called with the position of a click.
 * @param {{chart: any, describe?: (place: number) => string, tick?: (place: number) => string, choose?: (place: number) => void}} props */
export function SeriesChart({ chart, describe, tick, choose }) {
  const [at, setAt] = useState(null); // where the pointer is, from 0 to 1 of what is shown
  const [from, setFrom] = useState(null); // where a drag started
  const [shown, show] = useState(ALL);
  const drawing = useMemo(() => parseSvg(chart.svg), [chart.svg]);
  // A page with many charts has the hint once.
  const hint = tick && !choose ? 'Drag to zoom in, double-click to reset.' : '\u00a0';
  const position = (place) => shown[0] + place * (shown[1] - shown[0]);
  const readout = at === null ? hint : describe ? describe(position(at)) : columnAt(drawing, position(at));
  const drop = (event) => {
    const ends = [from, placeOf(event)].sort((a, b) => a - b);
    const isDrag = ends[1] - ends[0] > CLICK;
    if (from !== null && isDrag) show(ends.map(position));
    if (from !== null && !isDrag) choose?.(position(from));
    setFrom(null);
  };
  const drags = tick && {
    onPointerDown: (event) => {
      event.currentTarget.setPointerCapture(event.pointerId);
      setFrom(placeOf(event));
    },
    onPointerUp: drop,
    onPointerCancel: () => setFrom(null),
    onDblClick: () => choose || show(ALL),
  };
  return html`<${Chart} chart=${chart}>
    <div class=${tick ? 'closer' : ''} onPointerMove=${(event) => setAt(placeOf(event))} onPointerLeave=${() => setAt(null)} ...${drags}>
      ${nodes(drawing, (tag, props, children) => adapt(tag, props, children, shown, tick, from === null ? null : [from, at ?? from]))}
    </div>
    <div class="foot"><p class="readout small number">${readout}</p>
      ${shown !== ALL && html`<button class="quiet" onClick=${() => show(ALL)}>Show all</button>`}</div>
  <//>`;
}

/** Adapts an element of the drawing to the visible range `shown`; `drag` is the range being selected. */
function adapt(tag, props, children, shown, tick, drag) {
  const kinds = (props.class ?? '').split(' ');
  if (shown !== ALL && kinds.includes('plot')) {
    const [, top, wide, high] = props.viewBox.split(' ').map(Number);
    return h(tag, { ...props, class: 'plot clipped', viewBox: `${wide * shown[0]} ${top} ${wide * (shown[1] - shown[0])} ${high}` }, children);
  }
  if (shown !== ALL && kinds.includes('tick')) return null;
  if (shown !== ALL && kinds.includes('chart')) {
    const y = children.findLast((child) => child?.props?.class === 'middle title').props.y - 17;
    const labels = ['start', 'middle', 'end'].map((kind, i) => h('text', { class: kind, x: `${50 * i}%`, y },
      tick(shown[0] + (i / 2) * (shown[1] - shown[0]))));
    return h(tag, props, [...children, ...labels]);
  }
  if (drag && kinds.includes('area')) {
    const [left, right] = [...drag].sort((a, b) => a - b);
    const marked = { ...props, class: 'dragged', x: `${100 * left}%`, width: `${100 * (right - left)}%` };
    return h('g', {}, [h(tag, props), h(tag, marked)]);
  }
  return h(tag, props, children);
}

const TAGS = new Set(['svg', 'g', 'a', 'title', 'text', 'line', 'rect', 'circle', 'path', 'polyline', 'polygon']);
const ATTRIBUTES = new Set(['class', 'role', 'aria-label', 'tabindex', 'viewBox', 'preserveAspectRatio', 'width', 'height',
  'x', 'y', 'x1', 'x2', 'y1', 'y2', 'dx', 'cx', 'cy', 'r', 'rx', 'd', 'points']);

/** The root element, parsed in a separate document in which no script runs and nothing is loaded. @param {string} svg @returns {Element} */
function parseSvg(svg) {
  return new DOMParser().parseFromString(svg, 'text/html').body.firstElementChild;
}

/** The element as a preact node, so that focus and pointer survive a redrawn chart. @param {Element} element
 * @param {(tag: string, props: Record<string, string>, children: any[]) => any} [make] */
function nodes(element, make = h) {
  if (!TAGS.has(element?.localName)) return null;
  /** @type {Record<string, string>} */
  const props = {};
  for (const { name, value } of element.attributes) {
    if (ATTRIBUTES.has(name) || (name === 'href' && value.startsWith('#/'))) props[name] = value;
  }
  const children = [...element.childNodes].map((child) => (child instanceof Text ? child.data : nodes(/** @type {Element} */ (child), make)));
  return make(element.localName, props, children);
}
