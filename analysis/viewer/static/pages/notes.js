/** The labels of a run, its authors, and how well they agree with the verifier and with each other. */
import { html } from '../vendor/htm-preact.js';
import { IS_EXPORT, useData } from '../data.js';
import { count, pluralize, interval, plain, percent } from '../formatting.js';
import { useNotes } from '../parts/notestore.js';
import { Notice, Breadcrumbs } from '../parts/notice.js';
import { link } from '../route.js';
import { runOf } from '../runs.js';
import { Name } from '../text.js';

const NONE = 'No rollout has a label, a verdict or a note.';
const EMPTY = 'No rollout has a label, a verdict or a note yet. On a rollout or a row of the list: l adds a label, c is correct, x is wrong, w writes a note.';

/** @param {{route: import('../route.js').Route, overview: any}} props */
export function NotesPage({ route, overview }) {
  const run = runOf(overview, route.path[1]);
  const store = useNotes(run.run);
  const { view: notes } = store;
  // The version is part of the request, so that it is repeated when somebody writes something.
  const { value: view, error, stale } = useData(notes && `runs/${run.run}/notes/agreement${IS_EXPORT ? '' : `?version=${notes.version}.${run.indexed}`}`);
  return html`
    <${Breadcrumbs} name=${`Notes on ${run.name}`} steps=${[['Overview', link([])], ['Rollouts', link(['runs', run.run])]]}
      title=${html`Notes on <${Name} value=${run.name} />`}>
      ${overview.runs.length > 1 && html`<nav class="row small" aria-label="Notes on other runs">
        ${overview.runs.filter((one) => one.run !== run.run).map((one) => html`<a href=${link(['runs', one.run, 'notes'])}><${Name} value=${one.name} /></a>`)}
      </nav>`}
    <//>
    ${(store.error || error) && html`<${Notice} error=${store.error || error} />`}
    ${notes?.error && html`<${Notice} error=${new Error(notes.error)} />`}
    ${!view && !error && !store.error && html`<${Notice} busy="Reading …" />`}
    ${notes && html`<${State} notes=${notes} size=${store.notes.size} />`}
    ${view && html`<div class=${stale ? 'stale' : ''}>
      ${store.notes.size === 0 && html`<${Notice} text=${IS_EXPORT ? NONE : EMPTY} />`}
      ${view.labels.length > 0 && html`<${Labels} run=${run.run} view=${view} />`}
      ${view.authors.length > 0 && html`<${Authors} run=${run.run} authors=${view.authors} />`}
      ${store.notes.size > 0 && html`<${Agreements} run=${run.run} view=${view} />`}
    </div>`}`;
}

/** How much there is, and what of the file cannot be shown. */
function State({ notes, size }) {
  return html`<p class="soft small" role="status">${pluralize(size, 'rollout')} with labels, verdicts or notes, in <${Name} value=${notes.path} /></p>
    ${notes.why_read_only && html`<p class="small soft"><${Name} value=${`Notes cannot be written: ${notes.why_read_only}.`} /></p>`}
    ${notes.lost > 0 && html`<p class="message">${pluralize(notes.lost, 'rollout')} with notes ${notes.lost === 1 ? 'is' : 'are'} not in the rollout file,
      ${' '}because it was collected again or shortened, or is still being read. Their notes are kept, and never shown at another response.</p>`}
    ${notes.ignored > 0 && html`<details class="folded"><summary>${pluralize(notes.ignored, 'line')} of the file ${notes.ignored === 1 ? 'is' : 'are'} not shown</summary>
      <ul class="small">${notes.ignored_lines.map((line) => html`<li><${Name} value=${line} /></li>`)}</ul></details>`}`;
}

/** A text as an expression writes it. */
const quoted = (text) => JSON.stringify(text);

function Labels({ run, view }) {
  const hasSolved = view.labels.some((one) => one.solved !== null);
  return html`<section class="block"><h2>Labels</h2><div class="table"><table>
    <caption class="hidden">Labels and numbers of rollouts</caption>
    <thead><tr><th scope="col" class="words">label</th><th scope="col">rollouts</th>${hasSolved && html`<th scope="col">solved</th>`}<th scope="col" class="words">authors</th></tr></thead>
    <tbody>${view.labels.map((one) => html`<tr key=${one.label}>
      <th scope="row" class="words">${IS_EXPORT ? html`<${Name} value=${one.label} />`
        : html`<a href=${link(['runs', run], { where: `${quoted(one.label)} in labels` })}><${Name} value=${one.label} /></a>`}</th>
      <td>${count(one.rollouts)}</td>${hasSolved && html`<td>${count(one.solved)} <span class="soft small">of ${count(one.measured)}</span></td>`}
      <td class="words"><${Name} value=${one.authors.join(', ')} /></td></tr>`)}</tbody>
  </table></div></section>`;
}

function Authors({ run, authors }) {
  return html`<section class="block"><h2>Authors</h2><div class="table"><table>
    <caption class="hidden">Authors and what they wrote</caption>
    <thead><tr><th scope="col" class="words">author</th><th scope="col">rollouts</th><th scope="col">labels</th><th scope="col">verdicts</th><th scope="col">notes</th></tr></thead>
    <tbody>${authors.map((one) => html`<tr key=${one.author}>
      <th scope="row" class="words">${IS_EXPORT ? html`<${Name} value=${one.author} />`
        : html`<a href=${link(['runs', run], { where: `${quoted(one.author)} in annotators` })}><${Name} value=${one.author} /></a>`}</th>
      <td>${count(one.rollouts)}</td><td>${count(one.labels)}</td><td>${count(one.verdicts)}</td><td>${count(one.notes)}</td></tr>`)}</tbody>
  </table></div></section>`;
}

const VERDICTS = ['correct', 'wrong'];
const SOURCE = 'κ: Cohen 1960; intervals of 95 %: Fleiss, Cohen & Everitt 1969, clustered by task.';

/** @param {{run: number, view: any}} props */
function Agreements({ run, view }) {
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

/**
 * @param {{agreement: any, rows: string[], columns: string[], rater: string, other: string, caption: string, href: ((row: number, column: number) => string) | null}} props
 *   `rater` names the rows and `other` the columns; `href`: the list of a cell's rollouts, or null if there is none.
 */
function Confusion({ agreement, rows, columns, rater, other, caption, href }) {
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
