/** Where the log-probabilities of engine and trainer differ, before an update of a training run. */
import { html } from '../vendor/htm-preact.js';
import { useData } from '../data.js';
import { count, percent, plain, pluralize, signed } from '../formatting.js';
import { useKeys } from '../keys.js';
import { Chart } from '../parts/charts.js';
import { Breadcrumbs, loading, Notice } from '../parts/page.js';
import { InContext } from '../parts/tokens.js';
import { go, link } from '../route.js';

const READING_MS = 1000;

export function Mismatch({ route, overview }) {
  const step = route.query.get('step');
  const { value, error, stale } = useData(`training/mismatch${step ? `?step=${encodeURIComponent(step)}` : ''}`, (found) => (found?.pending ? READING_MS : 0));
  const steps = value?.steps ?? [];
  const at = steps.indexOf(value?.step);
  const show = (index) => (steps[index] === undefined ? false : go(link(route.path, { step: steps[index] })));
  useKeys({ '[': () => show(at - 1), ']': () => show(at + 1) });
  return html`
    <${Breadcrumbs} name="Engine and trainer" title="Engine and trainer" steps=${[['Training run', link([])]]}>
      ${steps.length > 1 && html`<div class="row"><button disabled=${at <= 0} title="Previous step ([)" onClick=${() => show(at - 1)}>Previous</button>
        <label class="small soft">Step <select onChange=${(event) => go(link(route.path, { step: event.target.value }))}>
          ${steps.map((one) => html`<option value=${one} selected=${one === value.step}>${count(one)}</option>`)}</select></label>
        <button disabled=${at + 1 >= steps.length} title="Next step (])" onClick=${() => show(at + 1)}>Next</button></div>`}
    <//>
    ${loading(value, error, 'Reading …')}
    ${value && value.step === null && html`<p class="message">No step of ${overview.training?.name ?? 'this run'} has recorded pairs; ng_train records them in token_pairs/.</p>`}
    ${value?.problem && html`<${Notice} error=${new Error(value.problem)} />`}
    ${value && value.step !== null && !value.problem && html`<div class=${stale ? 'stale' : ''}>
      <p class="soft small">Step ${count(value.step)}: log-probabilities of ${pluralize(value.tokens, 'token')} with a loss, as the engine recorded them and as the
        trainer computed them before the update. Differences are those of rounding, of other kernels, and of rollouts that older weights sampled.
        ${` ${percent(value.tokens ? value.clipped / value.tokens : 0, 2)}`} have no gradient, because their ratio is clipped.
        ${value.not_finite > 0 && ` ${pluralize(value.not_finite, 'recorded token')} without a finite log-probability are left out.`}</p>
      <section class="block" aria-label="Sampled and all tokens"><h2>Sampled and all tokens</h2>
        <div class="charts">${value.charts.map((chart) => html`<${Chart} key=${chart.name} chart=${chart} />`)}</div></section>
      <${Largest} value=${value} />
    </div>`}`;
}

function Largest({ value }) {
  if (!value.largest.length) return null;
  return html`<section class="block" aria-label="Largest differences"><h2>Largest differences</h2>
    <div class="table" tabindex="0" role="region" aria-label="Table of the largest differences"><table>
      <thead><tr><th scope="col">token in context</th><th scope="col">engine</th><th scope="col">trainer</th><th scope="col">difference</th>
        <th scope="col">ratio</th><th scope="col">entropy</th><th scope="col">clipped</th><th scope="col" class="words">rollout</th></tr></thead>
      <tbody>${value.largest.map((one) => html`<tr><th scope="row"><${InContext} one=${one} logProb=${one.engine} kind="mono context" /></th>
        <td>${plain(one.engine)}</td><td>${plain(one.trainer)}</td><td>${signed(one.trainer - one.engine)}</td>
        <td>${plain(Math.exp(one.trainer - one.engine))}</td><td>${plain(one.entropy)}</td><td>${one.clipped ? 'yes' : 'no'}</td>
        <td class="words"><${RolloutLink} one=${one} /></td></tr>`)}</tbody>
    </table></div></section>`;
}

function RolloutLink({ one }) {
  const name = `task ${one.task}, repeat ${one.repeat}`;
  if (one.call === null) return html`<span class="soft">${name}</span>`;
  return html`<a href=${link(['runs', one.run, 'tasks', one.task, one.repeat], { token: `${one.call}.${one.position}` })}>${name}</a>`;
}
