/** How many tokens a rollout takes, by kind. */
import { html } from '../vendor/htm-preact.js';
import { compact, count, several } from '../formatting.js';

const COLUMNS = { mean: 'mean', median: 'median', p95: '95%', max: 'most', total: 'all' };

/** @param {{tokens: any, drift: any}} props */
export function TokenTable({ tokens, drift }) {
  const kinds = ['input', 'output', 'reasoning'].filter((kind) => tokens[kind]);
  if (!kinds.length && !drift) return null;
  return html`<figure class="figure"><h3>Tokens of a rollout</h3>
    ${kinds.length > 0 && html`<div class="table" tabindex="0" role="region" aria-label="Tokens of a rollout"><table>
      <thead><tr><th scope="col">kind</th>${Object.values(COLUMNS).map((name) => html`<th scope="col">${name}</th>`)}</tr></thead>
      <tbody>${kinds.map((kind) => html`<tr><th scope="row">${kind}</th>
        ${Object.keys(COLUMNS).map((what) => html`<td title=${count(Math.round(tokens[kind][what]))}>${compact(Math.round(tokens[kind][what]))}</td>`)}
      </tr>`)}</tbody>
    </table></div>`}
    ${drift && html`<figcaption>Tokens on record for ${several(drift.rollouts, 'rollout')}: ${count(drift.breaks)} of
      ${` ${several(drift.turns, 'later turn')}`} broke with the turn before.</figcaption>`}
  </figure>`;
}
