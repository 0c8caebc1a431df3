/** What was learned and what was forgotten between two steps, or any two runs. */
import { html } from '../vendor/htm-preact.js';
import { useData } from '../data.js';
import { useKeys } from '../keys.js';
import { Notice, Breadcrumbs } from '../parts/notice.js';
import { Tile } from '../parts/runtiles.js';
import { changed, go, link } from '../route.js';
import { Name } from '../text.js';
import { count, interval, percent, plain, points, pluralize, signed } from '../formatting.js';

const PAGE_LENGTH = 100;
const READING_MS = 1000;
const STATES = ['none', 'some', 'all'];
const LISTS = { learned: 'Learned', forgotten: 'Forgotten', all: 'All tasks' };
const PAIRED = { content: 'content (_ng_task_key)', prompt: 'prompt and tools', index: 'index, because both manifests state the same input' };

/** @param {{route: import('../route.js').Route, overview: any}} props */
export function Changes({ route, overview }) {
  const [, , first, second] = route.path;
  const { query } = route;
  const start = Number(query.get('start') || 0);
  const list = query.get('list') || 'learned';
  const { value, error, stale } = useData(`series/changes?first=${first}&second=${second}&list=${list}&start=${start}&limit=${PAGE_LENGTH}`,
    (found) => (found && found.read < 1 ? READING_MS : 0));
  const turnPage = (by) => {
    const target = start + by * PAGE_LENGTH;
    if (value && target >= 0 && target < value.total) go(link(route.path, changed(query, { start: target || null })));
  };
  const up = link(overview.series || overview.training ? ['series'] : ['compare', first, second]);
  useKeys({ n: () => turnPage(1), p: () => turnPage(-1), u: () => go(up) });
  const title = value ? html`From <${Name} value=${value.names[0]} /> to <${Name} value=${value.names[1]} />` : 'Learned and forgotten';
  return html`
    <${Breadcrumbs} name="Learned and forgotten" title=${title} steps=${[['Overview', link([])], overview.series || overview.training ? ['Series', up] : ['Compare', up]]}>
      <div class="row"><a class="button" href=${link(['series', 'changes', second, first])}>Swap</a><a class="button" href=${link(['compare', first, second])}>All figures</a></div>
    <//>
    ${error && html`<${Notice} error=${error} />`}
    ${!value && !error && html`<${Notice} busy="Comparing …" />`}
    ${value && value.read < 1 && html`<p role="status" class="small soft">${`Reading: ${percent(value.read, 0)}; numbers cover the part read so far.`}</p>`}
    ${value?.why_not && html`<p class="message"><${Name} value=${`The tasks cannot be compared: ${value.why_not}.`} /></p>`}
    ${value && !value.why_not && html`<div class=${stale ? 'stale' : ''}>
      <${Summary} value=${value} />
      <${Transitions} value=${value} />
      <div class="row block" role="group" aria-label="List">${Object.entries(LISTS).map(([name, label]) => html`
        <button aria-pressed=${name === list} onClick=${() => go(link(route.path, { list: name }), true)}>${label} (${count({ learned: value.learned, forgotten: value.forgotten, all: value.difference.tasks }[name])})</button>`)}</div>
      <${TaskTable} value=${value} />
      ${value.total > PAGE_LENGTH && html`<nav class="paging" aria-label="Pages of tasks">
        <button onClick=${() => turnPage(-1)} disabled=${start === 0}>Previous</button>
        <span class="number small">${count(start + 1)}–${count(start + value.tasks.length)} of ${count(value.total)}</span>
        <button onClick=${() => turnPage(1)} disabled=${start + value.tasks.length >= value.total}>Next</button>
      </nav>`}
    </div>`}`;
}

function Summary({ value }) {
  const { difference, metric } = value;
  const isShare = metric === 'solve_rate';
  const bare = (share) => (isShare ? signed(Number((share * 100).toFixed(2))) : signed(share));
  const { p } = difference;
  const pValue = p === null ? '–' : p < 0.001 ? 'p < 0.001' : `p = ${plain(Number(p.toPrecision(2)))}`;
  const only = value.only[0] + value.only[1];
  return html`
    <p class="soft small">${pluralize(difference.tasks, 'task')} in both, paired by ${PAIRED[value.by]}, each with the same weight.
      ${only > 0 && ` ${count(value.only[0])} only in the first, ${count(value.only[1])} only in the second.`}</p>
    <dl class="tiles">
      <${Tile} label="Learned" large=${count(value.learned)} lines=${[isShare ? 'tasks solved more often' : 'tasks with a higher reward']} />
      <${Tile} label="Forgotten" large=${count(value.forgotten)} lines=${[isShare ? 'tasks solved less often' : 'tasks with a lower reward']} />
      <${Tile} label=${isShare ? 'Solve rate' : 'Mean reward'} large=${isShare ? points(difference.difference) : signed(difference.difference)}
        lines=${[interval(difference.interval, bare), `from ${isShare ? percent(difference.baseline) : plain(difference.baseline)} to ${isShare ? percent(difference.candidate) : plain(difference.candidate)}`]} />
      <${Tile} label="Test" large=${pValue} lines=${[difference.test]} />
    </dl>`;
}

/** Tasks by how many of their rollouts are solved in each run. */
function Transitions({ value }) {
  return value.transitions.length > 0 && html`<div class="table"><table class="transitions">
    <caption>Number of tasks by how many of their rollouts are solved: in <${Name} value=${value.names[0]} /> (rows) and <${Name} value=${value.names[1]} /> (columns)</caption>
    <thead><tr><td></td>${STATES.map((state) => html`<th scope="col">${state}</th>`)}</tr></thead>
    <tbody>${value.transitions.map((counts, before) => html`<tr><th scope="row">${STATES[before]}</th>
      ${counts.map((number, after) => html`<td class=${after > before ? 'good' : after < before ? 'bad' : ''}>${count(number)}</td>`)}</tr>`)}</tbody>
  </table></div>`;
}

function TaskTable({ value }) {
  const [first, second] = value.runs;
  const isShare = value.metric === 'solve_rate';
  if (!value.tasks.length) return html`<p class="message">There is no such task.</p>`;
  const shown = (rate, rollouts) => (isShare ? `${percent(rate, 0)} (${Math.round(rate * rollouts)} of ${count(rollouts)})` : plain(rate));
  const tested = value.tasks.some((task) => task.p !== null);
  return html`<div class="table" tabindex="0" role="region" aria-label="Tasks"><table>
    <caption>${isShare ? 'Solve rates' : 'Mean rewards'}, largest change first.${tested && ' p: Fisher’s exact test of one task alone; among many tasks, some are small by chance.'}</caption>
    <thead><tr><th scope="col">task</th><th scope="col">first</th><th scope="col">second</th><th scope="col">change</th>${tested && html`<th scope="col">p</th>`}<th scope="col" class="words">rollouts</th></tr></thead>
    <tbody>${value.tasks.map((task) => {
      const change = task.second - task.first;
      const both = ['compare', first, second, 'tasks', task.task, ...(task.task === task.task_in_second ? [] : [task.task_in_second])];
      return html`<tr key=${task.task}><th scope="row">${task.task}</th>
        <td>${shown(task.first, task.rollouts[0])}</td><td>${shown(task.second, task.rollouts[1])}</td>
        <td class=${change > 0 ? 'good' : change < 0 ? 'bad' : 'soft'}>${isShare ? points(change) : signed(change)}</td>
        ${tested && html`<td>${task.p === null ? '–' : plain(Number(task.p.toPrecision(2)))}</td>`}
        <td class="words"><a href=${link(both)} aria-label=${`Rollouts of task ${task.task} in both`}>in both</a>,${' '}
          <a href=${link(['runs', first, 'tasks', task.task])} aria-label=${`Rollouts of task ${task.task} in the first`}>first</a>,${' '}
          <a href=${link(['runs', second, 'tasks', task.task_in_second])} aria-label=${`Rollouts of task ${task.task} in the second`}>second</a></td></tr>`;
    })}</tbody>
  </table></div>`;
}
