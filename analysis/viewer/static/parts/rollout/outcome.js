/** The outcome of a rollout as a word and a symbol, so that colour is never the only cue. */
import { html } from '../../vendor/htm-preact.js';

/** @param {{line: {outcome: string, success: boolean | null}}} props */
export function Outcome({ line }) {
  if (line.outcome === 'failed') return html`<span class="outcome bad"><span aria-hidden="true">! </span>failed</span>`;
  if (line.success === null) return html`<span class="outcome soft">measured</span>`;
  return line.success
    ? html`<span class="outcome good"><span aria-hidden="true">✓ </span>solved</span>`
    : html`<span class="outcome soft"><span aria-hidden="true">✗ </span>not solved</span>`;
}
