/** The metrics and charts of every run, refreshed while it grows. */
import { html } from '../vendor/htm-preact.js';
import { IS_EXPORT, useData } from '../data.js';
import { bytes, count, percent, compact, pluralize } from '../formatting.js';
import { Chart } from '../parts/charts.js';
import { Breadcrumbs, loading, Notice, Progress } from '../parts/page.js';
import { RunTiles } from '../parts/tiles.js';
import { attemptsLink, link } from '../route.js';
import { Name } from '../text.js';

export function Overview({ overview }) {
  const { runs } = overview;
  const single = runs.length === 1;
  return html`
    <${Breadcrumbs} steps=${[]} name="Overview" title=${html`<${Name} value=${overview.title || 'Overview'} />`} />
    ${runs.map((run) => html`<${Run} key=${run.run} run=${run} single=${single} />`)}
    <footer class="soft small block">Rollyard <${Name} value=${overview.version} /></footer>`;
}

/** One run. The request contains the indexed size, so metrics are loaded again when more of the file is read. */
function Run({ run, single }) {
  const { value, error, stale } = useData(`runs/${run.run}/profile?indexed=${run.indexed}`);
  const all = IS_EXPORT ? 'Rollouts in this file' : `All ${count(run.measured + run.failed)} rollouts`;
  const reading = run.indexed < run.size - run.torn;
  return html`<section class=${single ? '' : 'block run'} aria-label=${`Run ${run.name}`}>
    ${!single && html`<h2><a href=${link(['runs', run.run])}><${Name} value=${run.name} /></a></h2>`}
    <p class="soft small"><${Name} value=${run.path} />, ${bytes(run.size)}
      ${run.torn > 0 && `, of which ${bytes(run.torn)} are an incomplete last line`}</p>
    ${run.error && html`<${Notice} error=${new Error(run.error)} />`}
    ${reading && !run.error && html`<p role="status" class="small soft">
      <progress max="1" value=${run.indexed / run.size} aria-label="Reading the file"></progress>
      ${` reading: ${percent(run.indexed / run.size, 0)} of ${bytes(run.size)}; numbers cover the part read so far`}</p>`}
    ${run.status && html`<${Progress} status=${run.status} />`}
    ${loading(value, error, 'Computing metrics …')}
    ${value && html`<div class=${stale ? 'stale' : ''}>
      <${RunTiles} profile=${value.profile} run=${run} />
      <p class="row"><a class="button" href=${link(['runs', run.run])}>${all}</a>
        ${value.profile.failures.attempts > 0 && html`<a class="button" href=${attemptsLink(run.run)}>Failed attempts</a>`}</p>
      <${Notes} notes=${value.profile.notes} />
      <details class="folded" open=${run.run === 0}><summary class=${single ? 'hidden' : ''}>Charts</summary>
        <div class="charts">
          ${value.charts.map((chart) => html`<${Chart} key=${chart.name} chart=${chart} />`)}
          <${TokenTable} tokens=${value.profile.tokens} drift=${value.profile.drift} />
        </div>
      </details>
    </div>`}
  </section>`;
}

function Notes({ notes }) {
  return notes.length > 0 && html`<ul class="notes">${notes.map((note) => html`<li><${Name} value=${note} /></li>`)}</ul>`;
}

const COLUMNS = { mean: 'mean', median: 'median', p95: 'p95', max: 'max', total: 'total' };

function TokenTable({ tokens, drift }) {
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
