/** The tokens of a run grouped by their text, with examples one click away. */
import { html } from '../../vendor/htm-preact.js';
import { changed, go, link } from '../../route.js';
import { visible } from '../../text.js';
import { count, percent, plain } from '../../formatting.js';
import { classOf } from '../rollout/tokenclasses.js';

const SORTS = {
  surprisal: 'part of all surprisal',
  log_prob: 'least likely on average',
  entropy: 'highest entropy',
  rare: 'most often below 1%',
  count: 'most frequent',
};
const LEAST = [1, 5, 20, 100, 1000];

/** @param {{run: number, value: any, query: URLSearchParams, path: string[], length: number}} props */
export function TokenGroups({ run, value, query, path, length }) {
  const set = (changes) => go(link(path, changed(query, { start: null, ...changes })), true);
  const { groups, start, total } = value;
  const hasEntropy = value.entropy !== null;
  const sorts = Object.entries(SORTS).filter(([name]) => name !== 'entropy' || hasEntropy);
  const frequencies = [...new Set([...LEAST, value.least])].sort((a, b) => a - b);
  return html`<section class="block" aria-label="Tokens by text"><h2>Tokens by text</h2>
    <div class="row">
      <label class="small soft">Order <select onChange=${(event) => set({ sort: event.target.value })}>
        ${sorts.map(([name, label]) => html`<option value=${name} selected=${name === value.sort}>${label}</option>`)}</select></label>
      <label class="small soft">that occur at least <select onChange=${(event) => set({ least: event.target.value })}>
        ${frequencies.map((one) => html`<option value=${one} selected=${one === value.least}>${count(one)}</option>`)}</select> times</label>
      <label class="small soft">containing <input type="search" size="12" value=${query.get('q') ?? ''} onChange=${(event) => set({ q: event.target.value })} /></label>
      <span class="small soft number" role="status">${count(total)} different</span>
    </div>
    ${groups.length === 0 ? html`<p class="message">No token matches.</p>` : html`
    <div class="table" tabindex="0" role="region" aria-label="Table of tokens by text"><table class="wide">
      <thead><tr><th scope="col">token</th><th scope="col">occurrences</th><th scope="col">share</th><th scope="col">rollouts</th>
        <th scope="col">mean log-probability</th><th scope="col">lowest</th><th scope="col">below 1%</th><th scope="col">of all surprisal</th>
        ${hasEntropy && html`<th scope="col">entropy, at least</th>`}<th scope="col" class="words">least likely in</th></tr></thead>
      <tbody>${groups.map((group) => html`<${GroupRow} key=${`${group.id} ${group.text}`} run=${run} group=${group} hasEntropy=${hasEntropy} />`)}</tbody>
    </table></div>`}
    ${total > length && html`<nav class="paging" aria-label="Pages of tokens">
      <button disabled=${start === 0} onClick=${() => set({ start: start - length || null })}>Previous</button>
      <span class="number small">${count(start + 1)}–${count(start + groups.length)} of ${count(total)}</span>
      <button disabled=${start + groups.length >= total} onClick=${() => set({ start: start + length })}>Next</button></nav>`}
    <p class="soft small">Surprisal is the negative log-probability; its part of the total is what the token contributes to the perplexity.
      ${hasEntropy && ' The entropy is a lower bound, from the recorded alternatives.'}</p>
  </section>`;
}

function GroupRow({ run, group, hasEntropy }) {
  return html`<tr>
    <th scope="row"><${TokenName} group=${group} /></th>
    <td>${count(group.count)}</td><td>${percent(group.share, 2)}</td><td>${count(group.rollouts)}</td>
    <td>${plain(group.log_prob)}</td><td>${plain(group.lowest)}</td><td>${count(group.rare)}</td><td>${percent(group.surprisal)}</td>
    ${hasEntropy && html`<td>${plain(group.entropy)}</td>`}
    <td class="words">${group.examples.slice(0, 2).map((one, i) => html`${i > 0 && ', '}<a href=${exampleLink(run, one)}>task ${one.task}, repeat ${one.repeat}</a>`)}</td>
  </tr>`;
}

/** The token as it is written in code, so that spaces can be seen, in the colour of its mean. @param {{group: any}} props */
export function TokenName({ group }) {
  return html`<span class=${`token ${classOf(group.log_prob)}`}>${group.text || group.id === null ? visible(JSON.stringify(group.text)) : `id ${group.id}`}</span>`;
}

/** The rollout at the token. @param {number} run @param {any} example */
export function exampleLink(run, example) {
  return link(['runs', run, 'tasks', example.task, example.repeat], { token: `${example.call}.${example.position}` });
}
