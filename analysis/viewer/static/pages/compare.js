/** Compares two runs task by task. */
import { html } from '../vendor/htm-preact.js';
import { useData } from '../data.js';
import { count, interval, percent, plain, pluralize, points, signed } from '../formatting.js';
import { useKeys } from '../keys.js';
import { sideBySide } from './sidebyside.js';
import { Chart } from '../parts/charts.js';
import { Breadcrumbs, loading, Paging, RunSelect, SortableHeader, Tile } from '../parts/page.js';
import { changed, go, link } from '../route.js';
import { choices, runOf } from '../runs.js';
import { Name } from '../text.js';

const PAGE_LENGTH = 25;

export function Compare({ route, overview }) {
  const [, first, second] = route.path;
  const { query } = route;
  const start = Number(query.get('start') || 0);
  const request = new URLSearchParams({ first, second, sort: query.get('sort') || 'change', start: String(start), limit: String(PAGE_LENGTH) });
  const { value, error, stale } = useData(`compare?${request}`);
  const names = [first, second].map((run) => runOf(overview, run).name);
  const turnTo = (target) => {
    if (value && target >= 0 && target < value.total) go(link(route.path, changed(query, { start: target || null })));
  };
  useKeys({ n: () => turnTo(start + PAGE_LENGTH), p: () => turnTo(start - PAGE_LENGTH) });
  return html`
    <${Breadcrumbs} name="Compare" title="Two runs, task by task" steps=${[['Overview', link([])]]}>
      <div class="row"><${RunSelect} label="First" runs=${choices(overview)} at=${first} choose=${(run) => go(link(['compare', run, second]))} />
        <${RunSelect} label="Second" runs=${choices(overview)} at=${second} choose=${(run) => go(link(['compare', first, run]))} /></div>
    <//>
    ${loading(value, error, 'Comparing …')}
    ${value && html`<div class=${stale ? 'stale' : ''}>
      ${value.difference
        ? html`<${DifferenceTiles} difference=${value.difference} names=${names} />`
        : html`<p class="message"><${Name} value=${value.note || 'The two runs have no task in common.'} /></p>`}
      <h2 class="hidden">Charts</h2>
      <div class="charts">${value.charts.map((chart) => html`<${Chart} key=${chart.name} chart=${chart} />`)}</div>
      <${Pairs} value=${value} query=${query} path=${route.path} names=${names} />
      <${Paging} label="Pages of tasks" start=${start} length=${PAGE_LENGTH} shown=${value.tasks.length} total=${value.total} turn=${turnTo} />
    </div>`}`;
}

function Pairs({ value, query, path, names }) {
  const sort = query.get('sort') || 'change';
  const head = (name, key) => (key
    ? html`<${SortableHeader} name=${name} sort=${key} now=${sort} path=${path} query=${query} />`
    : html`<th scope="col">${name}</th>`);
  // The server sorts by the compared outcome: solve rates, or rewards if "solved" is undefined.
  const bySolveRate = value.difference?.outcome === 'solve rate';
  return value.tasks.length > 0 && html`<div class="table"><table class="wide">
    <caption>Tasks: mean reward and solve rate in <${Name} value=${names[0]} /> (first) and in
      ${' '}<${Name} value=${names[1]} /> (second)</caption>
    <thead><tr>${head('task', 'task')}${head('reward, first', 'first')}${head('second', 'second')}${head('change', bySolveRate ? '' : 'change')}
      ${head('solved, first')}${head('second')}${head('change', bySolveRate ? 'change' : '')}${head('rollouts')}</tr></thead>
    <tbody>${value.tasks.map((pair) => html`<${PairRow} key=${pair.task} pair=${pair}
      href=${sideBySide([path[1], pair.task, 0], [path[2], pair.task_in_second, 0])}
      lists=${[link(['runs', path[1]], { task: pair.task }), link(['runs', path[2]], { task: pair.task_in_second })]} />`)}</tbody>
  </table></div>`;
}

/** `href`: the task's first rollouts side by side; `lists`: all its rollouts in each run. */
function PairRow({ pair, href, lists }) {
  const change = ([before, after]) => (before === null || after === null ? null : after - before);
  const cell = (value, format) => html`<td class=${value > 0 ? 'good' : value < 0 ? 'bad' : 'soft'}>${format(value)}</td>`;
  return html`<tr class="link" onClick=${(event) => !event.target.closest('a') && !String(getSelection()) && go(href)}>
    <th scope="row"><a href=${href} aria-label=${`Task ${pair.task}`}>${pair.task}</a></th>
    <td>${plain(pair.rewards[0])}</td><td>${plain(pair.rewards[1])}</td>${cell(change(pair.rewards), signed)}
    <td>${percent(pair.solved[0], 0)}</td><td>${percent(pair.solved[1], 0)}</td>${cell(change(pair.solved), points)}
    <td>${lists.map((list, i) => html`${i > 0 && ' · '}<a href=${list} aria-label=${`Rollouts of task ${pair.task} in the ${i ? 'second' : 'first'} run`}>${count(pair.measured[i])}</a>`)}</td>
  </tr>`;
}

function DifferenceTiles({ difference, names }) {
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
