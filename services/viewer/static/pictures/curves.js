/** Lines with their 95 % bands, told apart by colour, dashes and a name at the end. */
import { html } from '../vendor/htm-preact.js';
import { percent } from '../words.js';
import { Frame, places } from './frame.js';

/**
 * @typedef {{x: number, y: number, low: number | null, high: number | null}} Point
 * @param {{label: string, x: string, lines: {name: string, points: Point[]}[]}} props
 */
export function Curves({ label, x, lines }) {
  const xs = lines.flatMap((line) => line.points.map((point) => point.x));
  const low = Math.min(...xs);
  const high = Math.max(...xs);
  const axes = {
    x: { low, high: high > low ? high : low + 1, name: x, wholes: true, at: high > low ? undefined : [low] },
    y: { low: 0, high: 1, name: '', say: (value) => percent(value, 0) },
  };
  const at = places(axes.x, axes.y);
  const spot = (px, py) => `${at.x(px).toFixed(1)},${at.y(py).toFixed(1)}`;
  return html`<${Frame} label=${label} x=${axes.x} y=${axes.y}>
    ${lines.map((line, i) => {
      const sure = line.points.filter((point) => point.low !== null && point.high !== null);
      const band = [...sure.map((point) => spot(point.x, point.high)), ...sure.reverse().map((point) => spot(point.x, point.low))];
      return html`
        ${band.length > 2 && html`<polygon class="band s${i}" points=${band.join(' ')} />`}
        <polyline class="curve s${i}" points=${line.points.map((point) => spot(point.x, point.y)).join(' ')} />
        ${line.points.map((point) => html`<circle class="dot s${i}" cx=${at.x(point.x)} cy=${at.y(point.y)} r="3">
          <title>${`${line.name}, ${x} = ${point.x}: ${percent(point.y)}`}</title>
        </circle>`)}`;
    })}
  <//>
  <ul class="legend">${lines.map((line, i) => html`<li>
    <svg viewBox="0 0 28 10" aria-hidden="true"><line class="curve s${i}" x1="0" x2="28" y1="5" y2="5" /></svg>${line.name}
  </li>`)}</ul>`;
}
