/** The tokens of a run: how sure the policy was, where it was unsure, and of which tokens. */
import { html } from '../vendor/htm-preact.js';
import { IS_EXPORT, useData } from '../data.js';
import { Chart } from '../parts/chart.js';
import { Notice, Breadcrumbs } from '../parts/notice.js';
import { TokenGroups } from '../parts/tokens/tokengroups.js';
import { link } from '../route.js';
import { runOf } from '../runs.js';
import { Name } from '../text.js';
import { count, interval, percent, plain, pluralize } from '../formatting.js';

const READING_MS = 1000;
const PAGE_LENGTH = 50;

/** @param {{route: import('../route.js').Route, overview: any}} props */
export function Tokens({ route, overview }) {
  const run = runOf(overview, route.path[1]);
  const { query } = route;
  const start = Number(query.get('start') || 0);
  const request = new URLSearchParams({ start: String(start), limit: String(PAGE_LENGTH) });
  for (const name of ['sort', 'least', 'q']) if (query.get(name)) request.set(name, query.get(name));
  const path = `runs/${run.run}/tokens?${request}&indexed=${run.indexed}`;
  const { value, error, stale } = useData(path, (found) => (found && found.examined < 1 ? READING_MS : 0));
  const others = overview.runs.filter((one) => one.run !== run.run);
  return html`
    <${Breadcrumbs} name=${`Tokens of ${run.name}`} steps=${[['Overview', link([])], ['Rollouts', link(['runs', run.run])]]}
      title=${html`Tokens of <${Name} value=${run.name} />`}>
      ${others.length > 0 && others.length < 10 && html`<nav class="row small" aria-label="Tokens of other runs">
        ${others.map((one) => html`<a href=${link(['runs', one.run, 'tokens'])}><${Name} value=${one.name} /></a>`)}</nav>`}
    <//>
    ${error && html`<${Notice} error=${error} />`}
    ${value?.error && html`<${Notice} error=${new Error(value.error)} />`}
    ${!value && !error && html`<${Notice} busy="Reading tokens …" />`}
    ${value && value.tokens === 0 && value.examined === 1 && html`<${Nothing} rows=${value.rows} />`}
    ${value && value.examined < 1 && !IS_EXPORT && html`<p class="soft small" role="status"><progress max="1" value=${value.examined} aria-label="Read"></progress> reading</p>`}
    ${value && value.tokens > 0 && html`<div class=${stale ? 'stale' : ''}>
      <${Scope} value=${value} />
      <${Tiles} value=${value} />
      <section class="block" aria-label="Where the policy is unsure"><h2>Where the policy is unsure</h2>
        <div class="charts">${value.charts.map((chart) => html`<${Chart} key=${chart.name} chart=${chart} />`)}</div></section>
      <${TokenGroups} run=${run.run} value=${value} query=${query} path=${route.path} length=${PAGE_LENGTH} />
    </div>`}`;
}

function Nothing({ rows }) {
  return html`<p class="message">None of ${pluralize(rows, 'rollout')} has log-probabilities of its generated tokens. Set
    ${' '}<code>return_token_id_information: true</code> and <code>return_token_texts: true</code> on the model server, or let rows ask for
    ${' '}<code>include: ["message.output_text.logprobs"]</code>.</p>`;
}

/** What the numbers cover. */
function Scope({ value }) {
  return html`<p class="soft small">
    ${pluralize(value.tokens, 'generated token')} in ${pluralize(value.calls, 'model call')} of ${pluralize(value.with_tokens, 'rollout')}
    ${value.with_tokens < value.rows && html` (${count(value.rows - value.with_tokens)} others have none recorded)`}.
    ${value.sampled && html` The file is large, so that these are the rollouts in evenly spaced parts of it.`}
    ${value.without_texts > 0 && html` ${percent(value.without_texts / value.tokens, 0)} of the tokens have no recorded text and are grouped by id${value.groups.some((group) => group.id !== null && group.text) ? '' : '; --tokenizer shows their texts'}.`}
    ${IS_EXPORT && ' This file contains the first tokens of each order.'}
    ${value.left_out > 0 && html` ${count(value.left_out)} are not listed, because there are too many different tokens.`}
  </p>`;
}

function Tiles({ value }) {
  const { log_prob: mean, rare, entropy } = value;
  return html`<dl class="headfacts">
    <${Fact} name="Mean log-probability" value=${plain(mean.mean)} note=${interval(mean, plain)} />
    <${Fact} name="Perplexity" value=${plain(Math.exp(-mean.mean))} />
    <${Fact} name="Tokens below 1%" value=${percent(rare.mean, 2)} note=${interval(rare, (one) => percent(one, 2))} />
    ${entropy && html`<${Fact} name="Entropy, at least" value=${plain(entropy.mean)} note=${interval(entropy, plain)} />`}
  </dl>`;
}

function Fact({ name, value, note }) {
  return html`<div><dt>${name}</dt><dd>${value}${note && html` <span class="soft small">${note}</span>`}</dd></div>`;
}
