/** A series of checkpoints: curves with intervals, tasks by steps, and the way to what changed between two steps. */
import { html, useRef } from '../vendor/htm-preact.js';
import { useData } from '../data.js';
import { Chart } from '../parts/chart.js';
import { Notice, Breadcrumbs } from '../parts/notice.js';
import { TaskMap } from '../parts/series/taskmap.js';
import { changed, go, link } from '../route.js';
import { Name } from '../text.js';
import { bytes, count, percent, seconds } from '../formatting.js';

const READING_MS = 1000;
const GROWING_MS = 10_000;
const RESULTS = 1; // groups of charts above the tasks
const NAMES = { files: 'Files', evaluations: 'Evaluations', rollouts: 'Training rollouts' };

/** @param {{route: import('../route.js').Route, overview: any}} props */
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
    ${error && html`<${Notice} error=${error} />`}
    ${!value && !error && html`<${Notice} busy="Reading …" />`}
    ${value && html`
      ${!overview.training && !overview.series && html`<p class="message">The steps of these files are unknown, so that they are numbered in the order given. State them with --steps 0,25,50.</p>`}
      ${value.read < value.total && html`<p role="status" class="small soft"><progress max="1" value=${value.read / value.total} aria-label="Reading the files"></progress>
        ${` reading: ${percent(value.read / value.total, 0)} of ${bytes(value.total)}${value.seconds_left === null ? '' : `, about ${seconds(value.seconds_left)} left`}; curves show the steps read so far`}</p>`}
      ${value.notes.length > 0 && html`<ul class="notes">${value.notes.map((note) => html`<li><${Name} value=${note} /></li>`)}</ul>`}
      <p class="soft small">Bands are 95% intervals, clustered by task. Click a point to open the rollouts of its step.</p>
      ${value.groups.slice(0, RESULTS).map((group) => html`<${Group} key=${group.title} group=${group} />`)}
      <${Tasks} key=${value.of} value=${value} query=${query} path=${route.path} set=${set} version=${complete.current} />
      ${value.groups.slice(RESULTS).map((group) => html`<${Group} key=${group.title} group=${group} />`)}`}`;
}

function Group({ group }) {
  return html`<section class="block" aria-label=${group.title}><h2>${group.title}</h2>
    <div class="charts curves">${group.charts.map((chart) => html`<${Chart} key=${chart.name} chart=${chart} />`)}</div></section>`;
}

/** The range of steps, what changed between its ends, and the heat map. */
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
