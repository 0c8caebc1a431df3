/** The clusters of two runs with their counts in each and the difference, largest change first. */
import { html } from '../../vendor/htm-preact.js';
import { count, interval, percent, points } from '../../formatting.js';
import { Examples, Terms, allOf } from './clustercard.js';
import { Name } from '../../text.js';

/** @param {{found: any, runs: any[], where: string}} props */
export function ChangeTable({ found, runs, where }) {
  const pair = runs.map((run) => run.run).join('-');
  return html`<ol class="findings clusters">${found.changes.map((change) => html`<li key=${change.cluster.key}>
    <article class="finding cluster ${change.state}" aria-label=${change.cluster.name}>
      <header><h2><${Name} value=${change.cluster.name} /></h2><span class="badge">${change.state}</span></header>
      <dl class="inline">
        <div><dt>difference</dt><dd>${points(change.difference.mean)} <span class="soft">${interval(change.difference, points)}</span></dd></div>
      </dl>
      <div class="table"><table>
        <caption class="hidden">Rollouts of the cluster in both runs</caption>
        <thead><tr><th scope="col" class="words">run</th><th scope="col">rollouts</th><th scope="col">share</th><th scope="col" class="words">95% interval</th></tr></thead>
        <tbody>${runs.map((run, at) => html`<tr key=${at}>
          <th scope="row"><${Name} value=${run.name} /></th>
          <td>${change.counts[at] ? html`<a href=${allOf(run.run, change.cluster, where, pair)}>${count(change.counts[at])}</a>` : '0'}</td>
          <td>${percent(change.shares[at].mean)}</td>
          <td class="words soft">${interval(change.shares[at], percent).replace('95% interval ', '')}</td>
        </tr>`)}</tbody>
      </table></div>
      ${runs.map((run, at) => change.examples[at].length > 0 && html`<p key=${at} class="row small"><span class="soft">Typical in <${Name} value=${run.name} /></span>
        <${Examples} run=${run.run} rollouts=${change.examples[at]} /></p>`)}
      <details class="folded"><summary>Terms</summary><${Terms} terms=${change.cluster.terms} /></details>
    </article></li>`)}</ol>`;
}
