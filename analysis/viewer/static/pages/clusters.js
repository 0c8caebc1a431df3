/** Failed rollouts grouped by what they do wrong: of one run, or of two runs with what changed. */
import { html } from '../vendor/htm-preact.js';
import { useData } from '../data.js';
import { count, percent } from '../formatting.js';
import { ChangeTable } from '../parts/clusters/changetable.js';
import { ClusterCard } from '../parts/clusters/clustercard.js';
import { FailedField } from '../parts/clusters/failedfield.js';
import { Notice, Breadcrumbs } from '../parts/notice.js';
import { changed, go, link } from '../route.js';
import { choices, runOf } from '../runs.js';
import { Name, escapeInvisible } from '../text.js';

const POLL_MS = 700;
const ABOUT = 'Rollouts that do the same thing wrong, largest group first. They are grouped without a model, by what they did, called and answered, and by the reasons of the verdict.';

/** The clusters of one run. @param {{route: import('../route.js').Route, overview: any}} props */
export function Clusters({ route, overview }) {
  const run = runOf(overview, route.path[1]);
  const where = route.query.get('where') || '';
  const others = choices(overview).filter((one) => one.run !== run.run);
  const { value, error } = useClusters(`runs/${run.run}/clusters`, where, run.indexed);
  const found = value?.clusters;
  return html`
    <${Breadcrumbs} name=${`Clusters of ${run.name}`} steps=${[['Overview', link([])], ['Rollouts', link(['runs', run.run])]]}
      title=${html`Clusters of failures in <${Name} value=${run.name} />`}>
      ${others.length > 0 && html`<label class="row small soft">Compare with <select
        onChange=${(event) => event.target.value && go(link(['clusters', run.run, event.target.value], route.query))}>
        <option value="">choose a run</option>
        ${others.map((one) => html`<option value=${one.run}>${escapeInvisible(one.name)}</option>`)}
      </select></label>`}
    <//>
    <${FailedField} where=${where} change=${(text) => go(link(route.path, changed(route.query, { where: text })))} />
    <${State} value=${value} error=${error} found=${found} />
    ${found && html`<div>
      <p class="soft small" role="status">${`${count(found.failed)} of ${count(found.rollouts)} measured rollouts failed: `}<${Name} value=${found.rule} />${`. ${count(found.unclustered)} of them belong to no cluster.`}
        ${found.sampled < found.failed && ` The clusters were built from ${count(found.sampled)} of them, to which all others were compared.`}</p>
      ${found.clusters.length > 0 ? html`<p class="soft small">${ABOUT}</p>` : html`<${Notice} text=${found.note} />`}
      <ol class="findings clusters">${found.clusters.map((cluster, index) => html`
        <li key=${cluster.key}><${ClusterCard} run=${run.run} rank=${index + 1} cluster=${cluster} where=${where} /></li>`)}</ol>
    </div>`}`;
}

/** The clusters of two runs together, and how often each occurs in both. @param {{route: import('../route.js').Route, overview: any}} props */
export function ClusterChanges({ route, overview }) {
  const runs = [1, 2].map((place) => runOf(overview, route.path[place]));
  const where = route.query.get('where') || '';
  const { value, error } = useClusters(`clusters/${runs[0].run}/${runs[1].run}`, where, runs[0].indexed + runs[1].indexed);
  const found = value?.changes;
  const select = (label, place) => html`<label class="row small soft">${label} <select
    onChange=${(event) => go(link(['clusters', ...runs.map((run, at) => (at === place ? event.target.value : run.run))], route.query))}>
    ${choices(overview).map((one) => html`<option value=${one.run} selected=${one.run === runs[place].run}>${escapeInvisible(one.name)}</option>`)}
  </select></label>`;
  return html`
    <${Breadcrumbs} name="Changed failures" title="Clusters of failures in two runs" steps=${[['Overview', link([])], ['Clusters', link(['runs', runs[1].run, 'clusters'], route.query)]]}>
      <div class="row">${select('First', 0)}${select('Second', 1)}</div>
    <//>
    <${FailedField} where=${where} change=${(text) => go(link(route.path, changed(route.query, { where: text })))} />
    <${State} value=${value} error=${error} found=${found} />
    ${found && html`<div>
      <p class="soft small" role="status">${`Failed: ${count(found.failed[0])} of ${count(found.rollouts[0])} rollouts in the first run, ${count(found.failed[1])} of ${count(found.rollouts[1])} in the second (`}<${Name} value=${found.rule} />).
        ${found.paired_by ? ` Differences are means over the ${count(found.tasks)} tasks of both runs.` : ' The tasks cannot be paired, so that the runs count as independent samples.'}</p>
      ${found.changes.length > 0 ? html`<${ChangeTable} found=${found} runs=${runs} where=${where} />` : html`<${Notice} text=${found.note} />`}
    </div>`}`;
}

/** The request contains the indexed size, so that clusters of a growing file are looked up again. */
function useClusters(path, where, indexed) {
  const query = new URLSearchParams(where ? { where, indexed } : { indexed });
  return useData(`${path}?${query}`, (loaded) => (loaded && loaded.done < 1 && !loaded.error ? POLL_MS : 0));
}

/** One element, because the order of a component's several elements may change when they appear one after another. */
function State({ value, error, found }) {
  const failure = error ?? (value?.error ? new Error(value.error) : null);
  return html`<div>
    ${failure && html`<${Notice} error=${failure} />`}
    ${!found && !failure && html`<${Notice} busy="Clustering failed rollouts …" />`}
    ${value && value.done < 1 && html`<p class="soft small">${found ? 'The file has grown; new clusters are computed: ' : ''}${percent(value.done, 0)}${' '}
      <progress max="1" value=${value.done} aria-label="Clustered"></progress></p>`}
  </div>`;
}
