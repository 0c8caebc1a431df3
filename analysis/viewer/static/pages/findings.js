/** What stands out in a run, most important first, and all rollouts of one finding. */
import { html } from '../vendor/htm-preact.js';
import { IS_EXPORT, useData } from '../data.js';
import { FindingCard } from '../parts/findings/findingcard.js';
import { FindingRollouts } from '../parts/findings/findingrollouts.js';
import { Notice, Breadcrumbs } from '../parts/notice.js';
import { link } from '../route.js';
import { runOf } from '../runs.js';
import { Name } from '../text.js';
import { count, percent } from '../formatting.js';

const POLL_MS = 1000;
const CAUTION = 'Observations that deserve a look, most important first: by the share of the run’s reward that they concern. Only rewarded rollouts are reported as exploits.';

/** @param {{route: import('../route.js').Route, overview: any}} props */
export function Findings({ route, overview }) {
  const run = runOf(overview, route.path[1]);
  if (route.path[3] !== undefined) return html`<${FindingRollouts} run=${run} kind=${route.path[3]} query=${route.query} />`;
  return html`<${Ranked} run=${run} runs=${overview.runs} />`;
}

/** The request contains the indexed size, so findings are loaded again when more of the file is read. */
function Ranked({ run, runs }) {
  const path = `runs/${run.run}/findings`;
  const { value, error, stale } = useData(`${path}?indexed=${run.indexed}`, (found) => (found && found.examined < 1 && !found.error ? POLL_MS : 0));
  return html`
    <${Breadcrumbs} name=${`Findings in ${run.name}`} steps=${[['Overview', link([])], ['Rollouts', link(['runs', run.run])]]}
      title=${html`Findings in <${Name} value=${run.name} />`}>
      ${!IS_EXPORT && html`<a class="button" href=${link(['runs', run.run, 'clusters'])}>Clusters of failures</a>`}
      ${runs.length > 1 && html`<nav class="row small" aria-label="Findings of other runs">
        ${runs.filter((one) => one.run !== run.run).map((one) => html`<a href=${link(['runs', one.run, 'findings'])}><${Name} value=${one.name} /></a>`)}
      </nav>`}
    <//>
    ${error && html`<${Notice} error=${error} />`}
    ${value?.error && html`<${Notice} error=${new Error(value.error)} />`}
    ${!value && !error && html`<${Notice} busy="Looking for findings …" />`}
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
