/** Long series, drawn by uPlot: drag to look closer, double-click to see all. */
import { html, useEffect, useRef } from '../vendor/htm-preact.js';

/**
 * @param {{label: string, data: number[][], series: {name: string, say: (value: number) => string, points?: boolean}[], x: string,
 *   time?: boolean, high?: number}} props
 */
export function Plot({ label, data, series, x, time = false, high = 180 }) {
  const box = useRef(null);
  const plot = useRef(null);
  useEffect(() => {
    const make = () => {
      plot.current?.destroy();
      plot.current = new globalThis.uPlot(options(box.current, series, x, time, high), data, box.current);
    };
    make();
    const resized = new ResizeObserver(() => plot.current.setSize({ width: box.current.clientWidth, height: high }));
    resized.observe(box.current);
    const look = matchMedia('(prefers-color-scheme: dark)');
    look.addEventListener('change', make);
    addEventListener('themechange', make);
    return () => {
      resized.disconnect();
      look.removeEventListener('change', make);
      removeEventListener('themechange', make);
      plot.current.destroy();
      plot.current = null;
    };
  }, [series.length]);
  useEffect(() => plot.current?.setData(data), [data]);
  return html`<div class="plot" ref=${box} role="img" aria-label=${label}></div>`;
}

/** Steps of a time axis: nothing here is measured more often than once a second. */
const SECONDS = [1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400];

/** A colour as it is now, light or dark: a canvas knows no variables. @param {Element} element @param {string} name */
function colour(element, name) {
  const probe = document.createElement('i');
  probe.style.setProperty('color', `var(${name})`);
  element.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

function options(box, series, x, time, high) {
  const [soft, rule] = [colour(box, '--soft'), colour(box, '--rule')];
  const lines = [colour(box, '--first'), colour(box, '--second'), colour(box, '--thought'), colour(box, '--good')];
  const axis = { stroke: soft, grid: { stroke: rule, width: 1 }, ticks: { show: false } };
  return {
    width: box.clientWidth,
    height: high,
    scales: { x: { time } },
    axes: [
      { ...axis, size: time ? 46 : 30, space: 80, incrs: time ? SECONDS : undefined },
      { ...axis, size: 50, values: (_, found) => found.map(series[0].say) },
    ],
    series: [{ label: x }, ...series.map((one, i) => ({
      label: one.name,
      stroke: lines[i % lines.length],
      width: one.points ? 0 : 1.5,
      dash: i ? [6, 3] : undefined,
      paths: one.points ? () => null : undefined,
      points: one.points ? { show: true, size: 4, fill: lines[i] } : { show: false },
      value: (_, value) => (value === null || value === undefined ? '' : one.say(value)),
    }))],
  };
}
