/** What stands out in a run, most important first, and all rollouts of one finding. */
import { html } from '../vendor/htm-preact.js';
import { IS_EXPORT, useData } from '../data.js';
import { count, percent, interval, plain } from '../formatting.js';
import { Breadcrumbs, loading, Notice } from '../parts/page.js';
import { attemptLink, link } from '../route.js';
import { runOf } from '../runs.js';
import { Name } from '../text.js';

const POLL_MS = 1000;
const CAUTION = 'Observations that deserve a look, most important first: by the share of the run’s reward that they concern. Only rewarded rollouts are reported as exploits.';

/** The request contains the indexed size, so findings are loaded again when more of the file is read. */
export function Findings({ route, overview }) {
  const run = runOf(overview, route.path[1]);
  const { value, error, stale } = useData(`runs/${run.run}/findings?indexed=${run.indexed}`, (found) => (found && found.examined < 1 && !found.error ? POLL_MS : 0));
  return html`
    <${Breadcrumbs} name=${`Findings in ${run.name}`} steps=${[['Overview', link([])], ['Rollouts', link(['runs', run.run])]]}
      title=${html`Findings in <${Name} value=${run.name} />`} />
    ${loading(value, error, 'Looking for findings …')}
    ${value?.error && html`<${Notice} error=${new Error(value.error)} />`}
    ${value && html`<div class=${stale ? 'stale' : ''}>
      <p class="soft small" role="status">
        ${`${count(value.rollouts)} measured rollouts examined`}
        ${value.examined < 1 && !IS_EXPORT && html` so far (${percent(value.examined, 0)} of the file)${' '}
          <progress max="1" value=${value.examined} aria-label="Examined"></progress>`}
      </p>
      <p class="soft small">${CAUTION}</p>
      ${value.findings.length === 0 && value.examined === 1 && html`<${Notice} text="Nothing stands out in this run." />`}
      <ol class="findings">${value.findings.map((finding, index) => html`
        <li key=${finding.kind}><${FindingCard} run=${run.run} rank=${index + 1} finding=${finding} /></li>`)}</ol>
    </div>`}`;
}

function FindingCard({ run, rank, finding }) {
  const { share, mean_reward: inside, mean_reward_others: outside } = finding;
  return html`<article class="finding ${finding.category}" aria-label=${finding.title}>
    <header><h2><span class="soft">${rank}</span> ${finding.title}</h2><span class="badge">${finding.category}</span></header>
    <p><${Name} value=${finding.sentence} /></p>
    <dl class="inline">
      <div><dt>share</dt><dd>${percent(share.mean)} <span class="soft">${interval(share, percent)}</span></dd></div>
      <div><dt>tasks</dt><dd>${count(finding.tasks)}</dd></div>
      ${inside && html`<div><dt>mean reward</dt><dd>${plain(inside.mean)} <span class="soft">${interval(inside, plain)}</span></dd></div>`}
      ${outside && html`<div><dt>others</dt><dd>${plain(outside.mean)} <span class="soft">${interval(outside, plain)}</span></dd></div>`}
      ${finding.solved !== null && html`<div><dt>solved</dt><dd>${count(finding.solved)} of ${count(finding.count)}</dd></div>`}
      <div><dt>reward concerned</dt><dd>${percent(finding.stake)}</dd></div>
    </dl>
    <p class="row small">
      <span class="soft">Examples</span>
      ${finding.examples.map((one) => html`<a href=${exampleOf(run, finding, one)}>task ${one.task}, repeat ${one.repeat}</a>`)}
      ${!IS_EXPORT && html`<a class="button" href=${allOf(run, finding)}>All ${count(finding.count)} ${finding.unit}</a>`}
    </p>
    <details class="folded"><summary>What is counted</summary><p class="small">${finding.definition}</p></details>
  </article>`;
}

function exampleOf(run, finding, { task, repeat }) {
  return finding.unit === 'attempts' ? attemptLink(run, { task, repeat, at: 0 }) : link(['runs', run, 'tasks', task, repeat]);
}

/** The list of all rollouts of a finding: by filters if they can express it. @param {number} run @param {any} finding */
function allOf(run, finding) {
  const filters = Object.keys(finding.filters).length ? finding.filters : { finding: finding.kind };
  return finding.unit === 'attempts' ? link(['runs', run, 'attempts'], { finding: finding.kind }) : link(['runs', run], filters);
}
