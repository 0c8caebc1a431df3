/** The number of tokens per rollout, by kind. */
import { html } from '../../vendor/htm-preact.js';
import { compact, count, pluralize } from '../../formatting.js';

const COLUMNS = { mean: 'mean', median: 'median', p95: 'p95', max: 'max', total: 'total' };

/** @param {{tokens: any, drift: any}} props */
export function TokenTable({ tokens, drift }) {
  const kinds = ['input', 'output', 'reasoning'].filter((kind) => tokens[kind]);
  if (!kinds.length && !drift) return null;
  return html`<figure class="figure"><h3>Tokens per rollout</h3>
    ${kinds.length > 0 && html`<div class="table" tabindex="0" role="region" aria-label="Tokens per rollout"><table>
      <thead><tr><th scope="col">kind</th>${Object.values(COLUMNS).map((name) => html`<th scope="col">${name}</th>`)}</tr></thead>
      <tbody>${kinds.map((kind) => html`<tr><th scope="row">${kind}</th>
        ${Object.keys(COLUMNS).map((statistic) => html`<td title=${count(Math.round(tokens[kind][statistic]))}>${compact(Math.round(tokens[kind][statistic]))}</td>`)}
      </tr>`)}</tbody>
    </table></div>`}
    ${drift && html`<figcaption>Recorded tokens of ${pluralize(drift.rollouts, 'rollout')}: prefix mismatches in ${count(drift.breaks)} of
      ${` ${pluralize(drift.turns, 'later turn')}`}.</figcaption>`}
  </figure>`;
}
