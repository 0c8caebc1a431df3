/** The differences between two runs over their common tasks. */
import { html } from '../vendor/htm-preact.js';
import { Name } from '../text.js';
import { count, interval, plain, points, pluralize, signed } from '../formatting.js';
import { Tile } from './runtiles.js';

/** @param {{difference: any, names: string[]}} props */
export function DifferenceTiles({ difference, names }) {
  const { solve_rate: rate, reward, better, worse, equal, sign_test_p: p } = difference;
  const bare = (share) => signed(Number((share * 100).toFixed(2)));
  const pValue = p < 0.001 ? 'p < 0.001' : `p = ${plain(p === null ? null : Number(p.toPrecision(2)))}`;
  const unpaired = difference.only_baseline + difference.only_here;
  const notes = [...difference.notes, ...difference.identity];
  return html`
    <p class="soft small"><${Name} value=${names[1]} /> minus <${Name} value=${names[0]} />,
      ${` over ${pluralize(difference.tasks, 'common task')}, each with the same weight.`}</p>
    <dl class="tiles">
      ${rate && html`<${Tile} label="Solve rate" large=${points(rate.mean)} lines=${[interval(rate, bare)]} />`}
      ${reward && html`<${Tile} label="Mean reward" large=${signed(reward.mean)} lines=${[interval(reward, signed)]} />`}
      <${Tile} label="Tasks better" large=${count(better)} lines=${[`by ${difference.outcome}`]} />
      <${Tile} label="Tasks worse" large=${count(worse)} lines=${[`${count(equal)} equal`]} />
      ${p !== null && html`<${Tile} label="Sign test" large=${pValue} lines=${['probability of a split this uneven']} />`}
    </dl>
    ${unpaired > 0 && html`<p class="soft small">
      ${pluralize(difference.only_baseline, 'task')} only in the first, ${count(difference.only_here)} only in the second.</p>`}
    ${notes.length > 0 && html`<ul class="notes">${notes.map((line) => html`<li><${Name} value=${line} /></li>`)}</ul>`}`;
}
