/** The tokens whose frequency differs most between two runs. */
import { html } from '../vendor/htm-preact.js';
import { useData } from '../data.js';
import { Notice, Breadcrumbs } from '../parts/notice.js';
import { exampleLink, TokenName } from '../parts/tokens/tokengroups.js';
import { link } from '../route.js';
import { runOf } from '../runs.js';
import { Name } from '../text.js';
import { count, percent, plain, pluralize } from '../formatting.js';

const READING_MS = 1000;

/** @param {{route: import('../route.js').Route, overview: any}} props */
export function TokenChanges({ route, overview }) {
  const [, first, second] = route.path;
  const runs = [first, second].map((run) => runOf(overview, run));
  const { value, error } = useData(`tokens/changes?first=${first}&second=${second}`, (found) => (found && found.examined < 1 ? READING_MS : 0));
  return html`
    <${Breadcrumbs} name="Tokens of two runs" title="Tokens whose frequency changed"
      steps=${[['Overview', link([])], ['Compare', link(['compare', first, second])]]}>
      <nav class="row small" aria-label="Tokens of one run">${runs.map((run) => html`<a href=${link(['runs', run.run, 'tokens'])}><${Name} value=${run.name} /></a>`)}</nav>
    <//>
    ${error && html`<${Notice} error=${error} />`}
    ${value?.error && html`<${Notice} error=${new Error(value.error)} />`}
    ${!value && !error && html`<${Notice} busy="Reading tokens …" />`}
    ${value && value.examined < 1 && html`<p class="soft small" role="status"><progress max="1" value=${value.examined} aria-label="Read"></progress> reading</p>`}
    ${value && value.examined === 1 && (value.why_not ? html`<p class="message"><${Name} value=${value.why_not} /></p>` : html`
      <p class="soft small">${pluralize(value.tokens[0], 'generated token')} of <${Name} value=${runs[0].name} /> (first) and
        ${` ${count(value.tokens[1])}`} of <${Name} value=${runs[1].name} /> (second), ordered by the weighted log-odds ratio
        (Monroe, Colaresi and Quinn 2008). Its z is not a test, because the tokens of a rollout depend on each other.
        ${value.sampled && ' Evenly spaced parts of large files were read.'}</p>
      <${Changed} title="More frequent in the second run" changed=${value.more} runs=${runs} />
      <${Changed} title="Less frequent in the second run" changed=${value.fewer} runs=${runs} />`)}`;
}

function Changed({ title, changed, runs }) {
  return html`<section class="block" aria-label=${title}><h2>${title}</h2>
    ${changed.length === 0 ? html`<p class="message">There is no such token.</p>` : html`
    <div class="table" tabindex="0" role="region" aria-label=${`${title}: table`}><table>
      <thead><tr><th scope="col">token</th><th scope="col">share, first</th><th scope="col">second</th><th scope="col">rollouts, first</th>
        <th scope="col">second</th><th scope="col">mean log-probability, first</th><th scope="col">second</th><th scope="col">odds ratio</th>
        <th scope="col">z</th><th scope="col" class="words">for example in</th></tr></thead>
      <tbody>${changed.map((one) => html`<${ChangedRow} key=${`${(one.groups[0] ?? one.groups[1]).id} ${(one.groups[0] ?? one.groups[1]).text}`} one=${one} runs=${runs} />`)}</tbody>
    </table></div>`}
  </section>`;
}

function ChangedRow({ one, runs }) {
  const { groups } = one;
  const [a, b] = groups;
  const cells = (value) => html`<td>${value(a)}</td><td>${value(b)}</td>`;
  // An example of the run in which the token is more frequent.
  const side = one.log_odds > 0 ? 1 : 0;
  return html`<tr><th scope="row"><${TokenName} group=${a ?? b} /></th>
    ${cells((group) => percent(group?.share ?? 0, 3))}${cells((group) => count(group?.rollouts ?? 0))}${cells((group) => plain(group?.log_prob))}
    <td>${plain(Math.exp(one.log_odds))}</td><td>${plain(Number(one.z.toFixed(1)))}</td>
    <td class="words">${(groups[side]?.examples ?? []).slice(0, 2).map((example, i) => html`${i > 0 && ', '}<a href=${exampleLink(runs[side].run, example)}>task ${example.task}, repeat ${example.repeat}</a>`)}</td></tr>`;
}
