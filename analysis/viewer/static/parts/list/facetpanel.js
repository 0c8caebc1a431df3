/** The values of a field over the rollouts of the list, with counts; a click selects those rollouts. */
import { html } from '../../vendor/htm-preact.js';
import { barCondition, valueText } from '../../columns.js';
import { useData } from '../../data.js';
import { changed } from '../../route.js';
import { Name } from '../../text.js';
import { count, percent, plain, pluralize } from '../../formatting.js';
import { Notice } from '../notice.js';

const POLL_MS = 400;

/** @param {{run: number, name: string, query: URLSearchParams, select: (where: string) => void, close: () => void}} props */
export function FacetPanel({ run, name, query, select, close }) {
  const request = changed(query, { facet: null, start: null, sort: null, columns: null, key: name });
  const { value: facet, error } = useData(`runs/${run}/facet?${request}`, (loaded) => (loaded && loaded.searched < 1 ? POLL_MS : 0));
  const most = Math.max(1, ...(facet?.values ?? []).map((one) => one.rollouts), ...(facet?.histogram ?? []).map((bar) => bar.rollouts));
  const bar = (rollouts) => html`<meter min="0" max=${most} value=${rollouts} aria-hidden="true"></meter>`;
  const isNumber = facet && facet.low !== null;
  return html`<section class="facet" aria-label=${`Values of ${name}`}>
    <div class="row"><h2>Values of <${Name} value=${name} /></h2><button class="quiet" onClick=${close}>Close</button></div>
    ${error && html`<${Notice} error=${error} />`}
    ${facet && html`<p class="small soft" aria-live="polite">${pluralize(facet.distinct, 'distinct value')} in ${pluralize(facet.rollouts, 'measured rollout')},
      ${' '}${count(facet.missing)} without one${isNumber ? `; from ${plain(facet.low)} to ${plain(facet.high)}, median ${plain(facet.median)}` : ''}
      ${facet.searched < 1 ? ` so far; read ${percent(facet.searched, 0)} of the file` : ''}</p>
    <table><caption class="hidden">Values and numbers of rollouts</caption><tbody>
      ${facet.values.map((one) => html`<tr><th scope="row" class="words">${one.where
        ? html`<button class="quiet" onClick=${() => select(one.where)}><${Name} value=${valueText(one.value)} /></button>`
        : html`<${Name} value=${valueText(one.value)} />`}</th><td>${count(one.rollouts)}</td><td>${bar(one.rollouts)}</td></tr>`)}
      ${facet.values.length === 0 && facet.histogram.map((one, at) => html`<tr><th scope="row" class="words"><button class="quiet"
        onClick=${() => select(barCondition(name, one, at === facet.histogram.length - 1))}>${plain(one.low)}${one.high > one.low && ` to ${plain(one.high)}`}</button></th>
        <td>${count(one.rollouts)}</td><td>${bar(one.rollouts)}</td></tr>`)}
    </tbody></table>
    ${facet.values.length > 0 && facet.distinct > facet.values.length && html`<p class="small soft">The ${facet.values.length} most frequent values.</p>`}`}
  </section>`;
}
