/** The labels of a run and their authors. */
import { html } from '../vendor/htm-preact.js';
import { IS_EXPORT, useData } from '../data.js';
import { count, pluralize } from '../formatting.js';
import { useNotes } from '../parts/notestore.js';
import { Breadcrumbs, Notice, Table } from '../parts/page.js';
import { link } from '../route.js';
import { runOf } from '../runs.js';
import { Name } from '../text.js';

const NONE = 'No rollout has a label, a verdict or a note.';
const EMPTY = 'No rollout has a label, a verdict or a note yet. On a rollout or a row of the list: l adds a label, c is correct, x is wrong, w writes a note.';

export function NotesPage({ route, overview }) {
  const run = runOf(overview, route.path[1]);
  const store = useNotes(run.run);
  const { view: notes } = store;
  // The version is part of the request, so that it is repeated when somebody writes something.
  const { value: view, error, stale } = useData(notes && `runs/${run.run}/notes/summary${IS_EXPORT ? '' : `?version=${notes.version}.${run.indexed}`}`);
  return html`
    <${Breadcrumbs} name=${`Notes on ${run.name}`} steps=${[['Overview', link([])], ['Rollouts', link(['runs', run.run])]]}
      title=${html`Notes on <${Name} value=${run.name} />`} />
    ${(store.error || error) && html`<${Notice} error=${store.error || error} />`}
    ${notes?.error && html`<${Notice} error=${new Error(notes.error)} />`}
    ${!view && !error && !store.error && html`<${Notice} busy="Reading …" />`}
    ${notes && html`<${State} notes=${notes} size=${store.notes.size} />`}
    ${view && html`<div class=${stale ? 'stale' : ''}>
      ${store.notes.size === 0 && html`<${Notice} text=${IS_EXPORT ? NONE : EMPTY} />`}
      ${view.labels.length > 0 && html`<${Labels} run=${run.run} labels=${view.labels} />`}
      ${view.authors.length > 0 && html`<${Authors} run=${run.run} authors=${view.authors} />`}
    </div>`}`;
}

function State({ notes, size }) {
  return html`<p class="soft small" role="status">${pluralize(size, 'rollout')} with labels, verdicts or notes, in <${Name} value=${notes.path} /></p>
    ${notes.why_read_only && html`<p class="small soft"><${Name} value=${`Notes cannot be written: ${notes.why_read_only}.`} /></p>`}
    ${notes.lost > 0 && html`<p class="message">${pluralize(notes.lost, 'rollout')} with notes ${notes.lost === 1 ? 'is' : 'are'} not in the rollout file,
      ${' '}because it was collected again or shortened, or is still being read. Their notes are kept, and never shown at another response.</p>`}
    ${notes.ignored > 0 && html`<details class="folded"><summary>${pluralize(notes.ignored, 'line')} of the file ${notes.ignored === 1 ? 'is' : 'are'} not shown</summary>
      <ul class="small">${notes.ignored_lines.map((line) => html`<li><${Name} value=${line} /></li>`)}</ul></details>`}`;
}

/** The list of the rollouts that have a text in a field of notes; an export has no expressions. */
function Having({ run, text, field }) {
  const name = html`<${Name} value=${text} />`;
  return IS_EXPORT ? name : html`<a href=${link(['runs', run], { where: `${JSON.stringify(text)} in ${field}` })}>${name}</a>`;
}

function Labels({ run, labels }) {
  const hasSolved = labels.some((one) => one.solved !== null);
  const solved = (one) => (hasSolved ? [html`${count(one.solved)} <span class="soft small">of ${count(one.measured)}</span>`] : []);
  return html`<section class="block"><h2>Labels</h2>
    <${Table} label="Labels and numbers of rollouts" names=${['label', 'rollouts', ...(hasSolved ? ['solved'] : []), 'authors']} left=${['label', 'authors']}
      rows=${labels.map((one) => [html`<${Having} run=${run} text=${one.label} field="labels" />`, count(one.rollouts), ...solved(one),
        html`<${Name} value=${one.authors.join(', ')} />`])} /></section>`;
}

const Authors = ({ run, authors }) => html`<section class="block"><h2>Authors</h2>
  <${Table} label="Authors and what they wrote" names=${['author', 'rollouts', 'labels', 'verdicts', 'notes']} left=${['author']}
    rows=${authors.map((one) => [html`<${Having} run=${run} text=${one.author} field="annotators" />`,
      ...['rollouts', 'labels', 'verdicts', 'notes'].map((name) => count(one[name]))])} /></section>`;
