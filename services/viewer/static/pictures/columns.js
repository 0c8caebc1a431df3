/** A histogram: columns over ranges or single values. */
import { html } from '../vendor/htm-preact.js';
import { Frame, places } from './frame.js';

/**
 * @param {{label: string, bars: {low: number, high: number, value: number, tip: string}[], x: string, wholes?: boolean,
 *   sayX?: (value: number) => string, sayY?: (value: number) => string, atX?: number[]}} props
 */
export function Columns({ label, bars, x, wholes, sayX, sayY, atX }) {
  const gaps = bars.slice(1).map((bar, i) => bar.low - bars[i].low).filter((gap) => gap > 0);
  const alone = (gaps.length ? Math.min(...gaps) : 1) * 0.8; // how wide a single value is drawn
  const edges = bars.map((bar) => (bar.high > bar.low ? [bar.low, bar.high] : [bar.low - alone / 2, bar.low + alone / 2]));
  const values = bars.map((bar) => bar.value);
  const [low, high] = [Math.min(...edges.map((edge) => edge[0])), Math.max(...edges.map((edge) => edge[1]))];
  const axes = {
    x: { low, high, name: x, say: sayX, wholes, at: atX },
    y: { low: Math.min(0, ...values), high: Math.max(0, ...values) || 1, name: '', say: sayY },
  };
  const at = places(axes.x, axes.y);
  return html`<${Frame} label=${label} x=${axes.x} y=${axes.y}>
    ${bars.map((bar, i) => {
      const [left, right] = [at.x(edges[i][0]), at.x(edges[i][1])];
      const [top, bottom] = [at.y(Math.max(0, bar.value)), at.y(Math.min(0, bar.value))];
      const gap = right - left > 4 ? 1 : 0;
      return html`<rect class="column" x=${left + gap / 2} width=${Math.max(1, right - left - gap)} y=${top}
        height=${bottom - top}><title>${bar.tip}</title></rect>`;
    })}
  <//>`;
}
