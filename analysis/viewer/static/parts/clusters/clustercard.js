/** A cluster as a card: its terms, its share with the interval as a bar, and rollouts one click away. */
import { html } from '../../vendor/htm-preact.js';
import { count, interval, percent, plain } from '../../formatting.js';
import { ShareBar } from '../../pages/findings.js';
import { changed, link } from '../../route.js';
import { Name } from '../../text.js';

/** @param {{run: number, rank: number, cluster: any, where: string}} props */
export function ClusterCard({ run, rank, cluster, where }) {
  const { share, mean_reward: reward } = cluster;
  return html`<article class="finding cluster" aria-label=${cluster.name}>
    <header><h2><span class="soft">${rank}</span> <${Name} value=${cluster.name} /></h2></header>
    <${ShareBar} share=${share} />
    <dl class="inline">
      <div><dt>rollouts</dt><dd>${count(cluster.count)}</dd></div>
      <div><dt>share</dt><dd>${percent(share.mean)} <span class="soft">${interval(share, percent)}</span></dd></div>
      <div><dt>tasks</dt><dd>${count(cluster.tasks)}</dd></div>
      ${reward && html`<div><dt>mean reward</dt><dd>${plain(reward.mean)} <span class="soft">${interval(reward, plain)}</span></dd></div>`}
    </dl>
    <p class="row small"><span class="soft">Typical</span><${Examples} run=${run} rollouts=${cluster.typical} />
      <a class="button" href=${allOf(run, cluster, where)}>All ${count(cluster.count)} rollouts</a></p>
    ${cluster.borderline.length > 0 && html`<p class="row small"><span class="soft">Borderline</span><${Examples} run=${run} rollouts=${cluster.borderline} /></p>`}
    <details class="folded"><summary>Terms</summary><${Terms} terms=${cluster.terms} /></details>
  </article>`;
}

/** Links to rollouts. @param {{run: number, rollouts: {task: number, repeat: number}[]}} props */
export function Examples({ run, rollouts }) {
  return rollouts.map((one) => html`<a href=${link(['runs', run, 'tasks', one.task, one.repeat])}>task ${one.task}, repeat ${one.repeat}</a>`);
}

/** The terms of a cluster with their shares. @param {{terms: any[]}} props */
export function Terms({ terms }) {
  return html`<div class="table"><table>
    <caption class="hidden">Terms that distinguish the cluster</caption>
    <thead><tr><th scope="col" class="words">term</th><th scope="col">here</th><th scope="col">other rollouts</th></tr></thead>
    <tbody>${terms.map((term) => html`<tr key=${term.text}><th scope="row"><${Name} value=${term.text} /></th>
      <td>${percent(term.inside, 0)}</td><td>${percent(term.outside, 0)}</td></tr>`)}</tbody>
  </table></div>`;
}

/** The list of a cluster's rollouts. @param {number} run @param {any} cluster @param {string} where @param {string} [runs] */
export function allOf(run, cluster, where, runs = '') {
  return link(['runs', run], changed(new URLSearchParams(), { cluster: cluster.key, clusters_where: where, clusters_of: runs }));
}
