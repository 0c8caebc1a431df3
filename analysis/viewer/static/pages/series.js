/** A series of checkpoints: curves with intervals, tasks by steps, and the way to what changed between two steps. */
import { html, useRef } from '../vendor/htm-preact.js';
import { useData } from '../data.js';
import { bytes, count, percent, plain, points, signed, SHADES, nextCell, shadeOf } from '../formatting.js';
import { Chart } from '../parts/charts.js';
import { Breadcrumbs, loading, Notice, Paging } from '../parts/page.js';
import { changed, go, link } from '../route.js';
import { Name } from '../text.js';

const READING_MS = 1000;
const GROWING_MS = 10_000;
const RESULTS = 1; // groups of charts above the tasks
const NAMES = { files: 'Files', evaluations: 'Evaluations', rollouts: 'Training rollouts' };

export function Series({ route, overview }) {
  const { query } = route;
  const of = query.get('of') || '';
  const { value, error } = useData(`series?of=${encodeURIComponent(of)}`, (found) => (found && found.read < found.total ? READING_MS : GROWING_MS));
  const complete = useRef(0); // the revision in which everything was read, which the heat map shows while more is read
  if (value && value.read >= value.total) complete.current = value.revision;
  const set = (changes) => go(link(route.path, changed(query, { start: null, ...changes })), true);
  return html`
    <${Breadcrumbs} name="Series" title="Steps of a series" steps=${[['Overview', link([])]]}>
      ${value?.choices.length > 1 && html`<div class="row" role="group" aria-label="Series">${value.choices.map(({ name, steps }) => html`
        <button aria-pressed=${name === value.of} onClick=${() => go(link(route.path, { of: name }))}>${NAMES[name]} (${count(steps)})</button>`)}</div>`}
    <//>
    ${loading(value, error, 'Reading …')}
    ${value && html`
      ${!overview.training && !overview.series && html`<p class="message">The steps of these files are unknown, so that they are numbered in the order given. State them with --steps 0,25,50.</p>`}
      ${value.read < value.total && html`<p role="status" class="small soft"><progress max="1" value=${value.read / value.total} aria-label="Reading the files"></progress>
        ${` reading: ${percent(value.read / value.total, 0)} of ${bytes(value.total)}; curves show the steps read so far`}</p>`}
      ${value.notes.length > 0 && html`<ul class="notes">${value.notes.map((note) => html`<li><${Name} value=${note} /></li>`)}</ul>`}
      <p class="soft small">Bands are 95% intervals, clustered by task. Click a point to open the rollouts of its step.</p>
      ${value.groups.slice(0, RESULTS).map((group) => html`<${Group} key=${group.title} group=${group} />`)}
      <${Tasks} key=${value.of} value=${value} query=${query} path=${route.path} set=${set} version=${complete.current} />
      ${value.groups.slice(RESULTS).map((group) => html`<${Group} key=${group.title} group=${group} />`)}`}`;
}

const Group = ({ group }) => html`<section class="block" aria-label=${group.title}><h2>${group.title}</h2>
  <div class="charts curves">${group.charts.map((chart) => html`<${Chart} key=${chart.name} chart=${chart} />`)}</div></section>`;

function Tasks({ value, query, path, set, version }) {
  const { steps } = value;
  if (steps.length < 2) return html`<p class="message">A series needs two steps.</p>`;
  const chosen = (name, otherwise) => steps.find((one) => String(one.step) === query.get(name)) ?? otherwise;
  const [from, to] = [chosen('from', steps[0]), chosen('to', steps.at(-1))];
  const select = (name, label, at) => html`<label class="soft small">${label} <select onChange=${(event) => set({ [name]: event.target.value })}>${steps.map(({ step }) => html`
    <option value=${step} selected=${step === at.step}>${count(step)}</option>`)}</select></label>`;
  return html`<section class="block" aria-label="Tasks by steps"><h2>Tasks by steps</h2>
    <div class="row">${select('from', 'From step', from)}${select('to', 'to step', to)}
      ${from.step !== to.step && html`<a class="button" href=${link(['compare', from.run, to.run], { sort: 'change' })}>Compare these steps</a>`}</div>
    ${version > 0
      ? html`<${TaskMap} query=${query} path=${path} of=${value.of} range=${[from.step, to.step].sort((a, b) => a - b)} version=${version} />`
      : html`<${Notice} busy="The tasks are shown when all files have been read …" />`}
  </section>`;
}

const PAGE_LENGTH = 50;
const SORTS = [['-change', 'largest gain'], ['change', 'largest loss'], ['learned', 'learned first'], ['-learned', 'learned last'], ['first', 'lowest at the start'], ['-first', 'highest at the start'],
  ['last', 'lowest at the end'], ['-last', 'highest at the end'], ['task', 'task']];
const MOVES = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
const VALUES = { solve_rate: 'solve rate', reward: 'mean reward' };
const PAIRED = { content: 'content (_ng_task_key)', prompt: 'prompt and tools', index: 'index, because all manifests state the same input' };

function TaskMap({ query, path, of, range, version }) {
  const start = Number(query.get('start') || 0);
  const sort = query.get('sort') || '-change';
  const request = new URLSearchParams({ of, sort, first: String(range[0]), last: String(range[1]), start: String(start), limit: String(PAGE_LENGTH), version: String(version) });
  if (query.get('value')) request.set('value', query.get('value'));
  const { value: map, error, stale } = useData(`series/tasks?${request}`);
  const set = (changes) => go(link(path, changed(query, { start: null, ...changes })), true);
  if (error) return html`<${Notice} error=${error} />`;
  if (!map) return html`<${Notice} busy="Pairing tasks …" />`;
  if (map.why_not) return html`<p class="message">Tasks cannot be paired: ${map.why_not}.</p>`;
  return html`<div class=${stale ? 'stale' : ''}>
    <div class="row small map-tools">
      <label class="soft">Cells <select onChange=${(event) => set({ value: event.target.value })}>${map.values.map((value) => html`
        <option value=${value} selected=${value === map.value}>${VALUES[value]}</option>`)}</select></label>
      <label class="soft">Sort by <select onChange=${(event) => set({ sort: event.target.value })}>${SORTS.map(([key, name]) => html`
        <option value=${key} selected=${key === sort}>${name}</option>`)}</select></label>
      <${Scale} low=${map.low} high=${map.high} format=${formatOf(map)} />
    </div>
    <p class="small soft">${count(map.total)} tasks, paired by ${PAIRED[map.by]}${map.columns.length < map.steps ? `; ${map.columns.length} of ${count(map.steps)} steps are shown` : ''}.
      ${' '}<i>Learned</i> is the first step from which a task is solved in at least half of its rollouts until the end. Arrow keys move between cells.</p>
    <${Cells} map=${map} />
    <${Paging} label="Pages of tasks" start=${start} length=${PAGE_LENGTH} shown=${map.rows.length} total=${map.total} turn=${(to) => set({ start: to || null })} />
  </div>`;
}

const formatOf = (map) => (map.value === 'solve_rate' ? (value) => percent(value, 0) : plain);

const Scale = ({ low, high, format }) => html`<span class="shades soft" role="img" aria-label=${`Shades from ${format(low)} to ${format(high)}`}>${format(low)}
  ${Array.from({ length: SHADES }, (_, shade) => html`<span class=${`shade shade-${shade}`}></span>`)} ${format(high)}</span>`;

function Cells({ map }) {
  const table = useRef(null);
  const format = formatOf(map);
  const change = map.value === 'solve_rate' ? points : signed;
  const linked = map.rows.map((row) => row.cells.map((cell) => cell !== null));
  const start = linked.flatMap((row, i) => row.flatMap((has, j) => (has ? [[i, j]] : [])))[0];
  const move = (event) => {
    const place = event.target.dataset?.at?.split(' ').map(Number);
    const next = place && MOVES[event.key] && nextCell(linked, place, MOVES[event.key]);
    if (!next) return;
    event.preventDefault();
    table.current.querySelector(`[data-at="${next.join(' ')}"]`)?.focus();
  };
  return html`<div class="table" tabindex="0" role="region" aria-label="Heat map"><table class="task-map" ref=${table} onKeyDown=${move}>
    <caption class="hidden">${VALUES[map.value]} of each task at each step</caption>
    <thead><tr><th scope="col">task</th>${map.columns.map((step) => html`<th scope="col">${step.step}</th>`)}<th scope="col">change</th></tr></thead>
    <tbody>${map.rows.map((row, i) => html`<tr key=${row.task}><th scope="row">${row.task}</th>
      ${row.cells.map((cell, j) => (cell === null ? html`<td class="none"><span class="hidden">none</span></td>` : html`
        <td class=${`shade-${shadeOf(cell.value, map.low, map.high)}`}><a href=${link(['runs', map.columns[j].run], { task: cell.task })} data-at=${`${i} ${j}`}
          tabindex=${start[0] === i && start[1] === j ? 0 : -1} title=${`step ${map.columns[j].step}: ${format(cell.value)} of ${cell.rollouts} rollouts`}
          aria-label=${`Task ${row.task} at step ${map.columns[j].step}: ${format(cell.value)}`}>${map.value === 'solve_rate' ? Math.round(cell.value * 100) : plain(cell.value)}</a></td>`))}
      <td class=${row.change > 0 ? 'good' : row.change < 0 ? 'bad' : 'soft'}>${change(row.change)}</td></tr>`)}</tbody>
  </table></div>`;
}
