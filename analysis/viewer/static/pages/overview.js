/** The metrics and charts of every run, refreshed while it grows. */
import { html } from '../vendor/htm-preact.js';
import { IS_EXPORT, useData } from '../data.js';
import { bytes, compact, count, interval, percent, plain, pluralize } from '../formatting.js';
import { Chart } from '../parts/charts.js';
import { Breadcrumbs, loading, Notice, Progress, Table, Tile } from '../parts/page.js';
import { link } from '../route.js';
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
        ${value.profile.failures.attempts > 0 && html`<a class="button" href=${link(['runs', run.run, 'attempts'])}>Failed attempts</a>`}</p>
      ${value.profile.notes.length > 0 && html`<ul class="notes">${value.profile.notes.map((note) => html`<li><${Name} value=${note} /></li>`)}</ul>`}
      <details class="folded" open=${run.run === 0}><summary class=${single ? 'hidden' : ''}>Charts</summary>
        <div class="charts">
          ${value.charts.map((chart) => html`<${Chart} key=${chart.name} chart=${chart} />`)}
          <${TokenTable} tokens=${value.profile.tokens} drift=${value.profile.drift} />
        </div>
      </details>
    </div>`}
  </section>`;
}

const STATISTICS = ['mean', 'median', 'p95', 'max', 'total'];

function TokenTable({ tokens, drift }) {
  const kinds = ['input', 'output', 'reasoning'].filter((kind) => tokens[kind]);
  if (!kinds.length && !drift) return null;
  return html`<figure class="figure"><h3>Tokens per rollout</h3>
    ${kinds.length > 0 && html`<${Table} label="Tokens per rollout" names=${['kind', ...STATISTICS]} rows=${kinds.map((kind) => [kind, ...STATISTICS.map((name) => {
      const value = Math.round(tokens[kind][name]);
      return html`<td title=${count(value)}>${compact(value)}</td>`;
    })])} />`}
    ${drift && html`<figcaption>Recorded tokens of ${pluralize(drift.rollouts, 'rollout')}: prefix mismatches in ${count(drift.breaks)} of
      ${` ${pluralize(drift.turns, 'later turn')}`}.</figcaption>`}
  </figure>`;
}

function RunTiles({ profile, run }) {
  const { coverage, solved, rewards, tasks, tool_calls: calls, tokens, failures } = profile;
  const last = tasks?.pass_at?.at(-1);
  const measured = count(coverage.measured);
  const failed = run.failed > 0 && html`<span class="bad">${count(run.failed)} without a reward</span>`;
  return html`<dl class="tiles">
    <${Tile} label="Measured" large=${coverage.expected === null ? measured : `${measured} of ${count(coverage.expected)}`}
      lines=${[pluralize(coverage.tasks_measured, 'task'), failed]} />
    ${solved && html`<${Tile} label="Success rate" large=${percent(solved.rate.mean)}
      lines=${[interval(solved.rate, percent), bounds(solved.bounds, coverage, percent),
        html`<${Name} value=${solved.rule} />`]} />`}
    ${rewards && !rewards.why_no_mean && html`<${Tile} label="Mean reward" large=${plain(rewards.mean.mean)}
      lines=${[interval(rewards.mean, plain), bounds(rewards.bounds, coverage, plain),
        `median ${plain(rewards.median)}, ${plain(rewards.min)} to ${plain(rewards.max)}`]} />`}
    ${last && last.k > 1 && html`<${Tile} label=${`pass@${last.k}`} large=${percent(last.any.mean)}
      lines=${[interval(last.any, percent), `pass^${last.k} ${percent(last.every.mean)}`,
        last.consensus && `cons@${last.k} ${percent(last.consensus.mean)}`,
        last.tasks < last.tasks_measured && `over ${count(last.tasks)} of ${count(last.tasks_measured)} tasks`]} />`}
    ${calls && html`<${Tile} label="Tool calls" large=${plain(calls.mean)}
      lines=${[`${calls.min} to ${calls.max}`,
        calls.correlation !== null && !rewards?.why_no_mean && `correlation with reward ${plain(Number(calls.correlation.toFixed(2)))}`]} />`}
    ${tokens.output && html`<${Tile} label="Output tokens" large=${plain(tokens.output.mean)}
      lines=${[`median ${plain(tokens.output.median)}, p95 ${plain(tokens.output.p95)}`,
        tokens.per_solved !== null && `${count(Math.round(tokens.per_solved))} tokens per solved rollout`]} />`}
    ${failures.attempts > 0 && html`<${Tile} label="Failed attempts" large=${count(failures.attempts)}
      lines=${[`${count(failures.mended)} recovered, ${count(failures.lost)} lost`]} />`}
  </dl>`;
}

function bounds(found, coverage, format) {
  const missing = coverage.expected !== null && coverage.expected > coverage.measured;
  if (!missing || found.lowest === null || found.highest === null) return '';
  return `${format(found.lowest)} to ${format(found.highest)} including missing rollouts`;
}
