/** A long series that shows the exact numbers at the pointer and zooms by dragging. */
import { h, html, useMemo, useState } from '../vendor/htm-preact.js';
import { nodes, parseSvg } from '../svgnodes.js';
import { Chart } from './chart.js';

const ALL = [0, 1];
const CLICK = 0.01; // a drag over less of the width is a click

/** @param {PointerEvent} event */
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

/**
 * `describe` returns the text for a position from 0 to 1 (default: the chart's own). `tick` labels a position and enables zooming.
 * `choose` is called with the position of a click.
 * @param {{chart: any, describe?: (place: number) => string, tick?: (place: number) => string, choose?: (place: number) => void}} props
 */
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
