/** Says that the list is filtered by a cluster, and links back to the clusters. */
import { html } from '../../vendor/htm-preact.js';
import { link } from '../../route.js';
import { Name } from '../../text.js';

/** @param {{run: number, query: URLSearchParams, change: (changes: Record<string, null>) => void}} props */
export function ClusterFilter({ run, query, change }) {
  const cluster = query.get('cluster');
  if (!cluster) return null;
  const runs = query.get('clusters_of');
  const path = runs ? ['clusters', ...runs.split('-')] : ['runs', run, 'clusters'];
  return html`<p class="row small">Cluster <b><${Name} value=${cluster} /></b>
    <a href=${link(path, { where: query.get('clusters_where') })}>all clusters</a>
    <button onClick=${() => change({ cluster: null, clusters_where: null, clusters_of: null })}>Remove</button></p>`;
}
