/** How verdicts agree with the verifier, and authors with each other. */
import { html } from '../../vendor/htm-preact.js';
import { IS_EXPORT } from '../../data.js';
import { link } from '../../route.js';
import { Name } from '../../text.js';
import { interval, plain, pluralize } from '../../formatting.js';
import { Confusion } from './confusion.js';

const VERDICTS = ['correct', 'wrong'];
const SOURCE = 'κ: Cohen 1960; intervals of 95 %: Fleiss, Cohen & Everitt 1969, clustered by task.';

/** @param {{run: number, view: any}} props */
export function Agreements({ run, view }) {
  const { verifier, pairs } = view;
  const list = (where, more = {}) => link(['runs', run], { where, ...more });
  return html`<section class="block agreement"><h2>Agreement</h2>
    ${verifier.agreement
      ? html`<${Confusion} agreement=${verifier.agreement} rows=${VERDICTS} columns=${['solved', 'not solved']} rater="people" other="verifier"
          caption="Verdicts of people (the last of each rollout) against the verifier"
          href=${IS_EXPORT ? null : (i, j) => list(verifier.where[i], { success: j === 0 ? 'true' : 'false' })} />`
      : html`<p class="message">${view.solved_rule ? 'No measured rollout has a verdict yet: c is correct, x is wrong.' : 'There is nothing to agree with: it is undefined which rollouts are solved. Start the viewer with --pass-threshold ...'}</p>`}
    ${verifier.uncounted > 0 && html`<p class="small soft">${pluralize(verifier.uncounted, 'verdict')} that are rewards are not counted, because it is unknown from which reward a rollout is correct (--pass-threshold).</p>`}
    <p class="small soft">Only rollouts that somebody judged count. If only suspicious ones are judged, the agreement is lower than that of all rollouts. ${SOURCE}</p>
    ${pairs.length > 0 && html`<h3>Between authors</h3>
      <div class="matrices">${pairs.map((pair) => html`<${Pair} key=${pair.authors.join('\n')} pair=${pair} list=${list} />`)}</div>`}
  </section>`;
}

function Pair({ pair, list }) {
  const [first, second] = pair.authors;
  return html`<div>
    ${pair.verdicts
      ? html`<${Confusion} agreement=${pair.verdicts} rows=${VERDICTS} columns=${VERDICTS} rater=${first} other=${second} caption=${`Verdicts of ${first} and ${second}`}
          href=${IS_EXPORT ? null : (i, j) => list(pair.where[i][j])} />`
      : html`<p class="small soft"><${Name} value=${first} /> and <${Name} value=${second} /> have judged no common rollout.</p>`}
    ${pair.labels.length > 0 && html`<div class="table"><table>
      <caption>Labels that <${Name} value=${first} /> and <${Name} value=${second} /> gave to rollouts that both looked at</caption>
      <thead><tr><th scope="col" class="words">label</th><th scope="col">both</th><th scope="col" class="words">only <${Name} value=${first} /></th>
        <th scope="col" class="words">only <${Name} value=${second} /></th><th scope="col">neither</th><th scope="col">κ</th></tr></thead>
      <tbody>${pair.labels.map(({ label, agreement, where }) => html`<tr key=${label}><th scope="row" class="words"><${Name} value=${label} /></th>
        ${[[0, 0], [0, 1], [1, 0], [1, 1]].map(([i, j]) => html`<td>${agreement.counts[i][j] && !IS_EXPORT
          ? html`<a href=${list(where[i][j])}>${agreement.counts[i][j]}</a>` : agreement.counts[i][j]}</td>`)}
        <td>${agreement.kappa ? html`${plain(agreement.kappa.mean)} <span class="soft small">${interval(agreement.kappa, plain).replace('95% interval ', '')}</span>` : 'undefined'}</td>
      </tr>`)}</tbody></table></div>`}
  </div>`;
}
