/** A share as a bar of 0 to 100 %, with its interval as a line. */
import { html } from '../../vendor/htm-preact.js';
import { interval, percent } from '../../formatting.js';

const HEIGHT = 10;

/** @param {{share: {mean: number, low: number | null, high: number | null}}} props */
export function ShareBar({ share }) {
  const hasInterval = share.low !== null && share.high !== null;
  const label = `${percent(share.mean)} ${interval(share, percent)}`;
  return html`<svg class="sharebar" role="img" aria-label=${label} viewBox=${`0 0 100 ${HEIGHT}`} preserveAspectRatio="none">
    <rect class="all" x="0" y="0" width="100" height=${HEIGHT} />
    <rect class="part" x="0" y="0" width=${100 * share.mean} height=${HEIGHT} />
    ${hasInterval && html`<line class="reach" x1=${100 * share.low} x2=${100 * share.high} y1=${HEIGHT / 2} y2=${HEIGHT / 2} />`}
  </svg>`;
}
