/** A confusion table of two raters, with the share of agreement and Cohen's kappa. */
import { html } from '../../vendor/htm-preact.js';
import { Name } from '../../text.js';
import { count, interval, percent, plain } from '../../formatting.js';

/**
 * @param {{agreement: any, rows: string[], columns: string[], rater: string, other: string, caption: string, href: ((row: number, column: number) => string) | null}} props
 *   `rater` names the rows and `other` the columns; `href`: the list of a cell's rollouts, or null if there is none.
 */
export function Confusion({ agreement, rows, columns, rater, other, caption, href }) {
  const cell = (value, i, j) => html`<td class=${i === j ? 'agreed' : 'differs'}>${href && value > 0
    ? html`<a href=${href(i, j)} aria-label=${`${count(value)} rollouts: ${rater} ${rows[i]}, ${other} ${columns[j]}`}>${count(value)}</a>`
    : count(value)}</td>`;
  return html`<figure class="confusion">
    <div class="table"><table>
      <caption><${Name} value=${caption} /></caption>
      <thead><tr><td class="corner soft"><${Name} value=${`${rater} ↓  ${other} →`} /></td>${columns.map((name) => html`<th scope="col">${name}</th>`)}</tr></thead>
      <tbody>${agreement.counts.map((values, i) => html`<tr><th scope="row">${rows[i]}</th>${values.map((value, j) => cell(value, i, j))}</tr>`)}</tbody>
    </table></div>
    <dl class="inline">
      <div><dt>n</dt><dd>${count(agreement.n)} <span class="soft">of ${count(agreement.tasks)} tasks</span></dd></div>
      <div><dt>agreement</dt><dd>${percent(agreement.agreed.mean)} <span class="soft">${interval(agreement.agreed, percent)}</span></dd></div>
      <div><dt>Cohen’s κ</dt><dd>${agreement.kappa ? plain(agreement.kappa.mean) : 'undefined'}
        ${' '}<span class="soft">${agreement.kappa ? interval(agreement.kappa, plain) || 'no interval' : 'only one category occurs'}</span></dd></div>
    </dl>
  </figure>`;
}
