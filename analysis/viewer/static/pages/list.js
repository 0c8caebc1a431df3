/** The rollouts of a run, filtered, sorted and paged. The address contains the entire state. */
import { html, useEffect, useRef, useState } from '../vendor/htm-preact.js';
import { EXPORT_VIEW, IS_EXPORT, useData } from '../data.js';
import { count, percent, pluralize } from '../formatting.js';
import { useKeys } from '../keys.js';
import { Annotator, useAnnotator } from '../parts/annotator.js';
import { FilterFold, Filters, ListTools } from '../parts/listtools.js';
import { useNotes } from '../parts/notestore.js';
import { Breadcrumbs, loading, Paging, RunSelect } from '../parts/page.js';
import { RolloutTable } from '../parts/rollouttable.js';
import { changed, go, link, parse } from '../route.js';
import { evaluationOf, isGrowing, rolloutsOf, runOf, versionOf } from '../runs.js';
import { Name } from '../text.js';

export const PAGE_LENGTH = 100;
const SEARCH_POLL_MS = 400;
const GROWTH_POLL_MS = 5000;

/** The request for a page of the list. @param {string} run @param {URLSearchParams} query */
function pathOf(run, query) {
  const request = changed(query, { start: Number(query.get('start') || 0), limit: PAGE_LENGTH, facet: null, match: null });
  return `runs/${run}/rollouts?${request}`;
}

export function List({ route, overview }) {
  const run = runOf(overview, route.path[1]);
  const { query } = route;
  const interval = (loaded) => (loaded?.searched < 1 ? SEARCH_POLL_MS : isGrowing(run) ? GROWTH_POLL_MS : 0);
  const { value: page, error, stale } = useData(pathOf(route.path[1], query), interval, versionOf(run));
  const list = useRef(null);
  const search = useRef(null);
  const expression = useRef(null);
  const focusOn = useRef(null);
  const [unfolded, setUnfolded] = useState(false);
  const start = page && !stale ? page.start : Number(query.get('start') || 0); // the list may have become shorter
  useEffect(() => {
    if (EXPORT_VIEW && !query.size) go(link(['runs', run.run], new URLSearchParams(EXPORT_VIEW)), true);
  }, [run.run]);
  // Based on the address, because another filter may have changed it since the page was rendered.
  const filter = (changes) => go(link(['runs', run.run], changed(parse(location.hash).query, { start: null, ...changes })));
  /** At once, so that no letter typed next is lost; on a phone the fields may be folded and take the focus only when drawn. */
  const focusField = (field) => {
    setUnfolded(true);
    field.current.focus();
    if (document.activeElement !== field.current) requestAnimationFrame(() => field.current.focus());
  };
  const turnTo = (target) => {
    if (target >= 0 && page && target < page.total) go(link(['runs', run.run], changed(query, { start: target || null })));
  };
  const turnPage = (by) => turnTo(start + by * PAGE_LENGTH);
  const moveFocus = (by) => {
    const links = [...list.current.querySelectorAll('tbody th a')];
    const at = links.indexOf(document.activeElement);
    if (at + by >= links.length || (at >= 0 && at + by < 0)) {
      focusOn.current = by;
      turnPage(by);
    } else links[at < 0 ? 0 : at + by]?.focus();
  };
  useEffect(() => {
    if (stale || !focusOn.current) return;
    const links = list.current.querySelectorAll('tbody th a');
    links[focusOn.current > 0 ? 0 : links.length - 1]?.focus();
    focusOn.current = null;
  }, [stale, page]);
  const notes = useNotes(run.run);
  const selected = () => {
    const at = [...(list.current?.querySelectorAll('tbody th a') ?? [])].indexOf(document.activeElement);
    return at < 0 ? null : page.lines[at];
  };
  const annotator = useAnnotator(notes, selected);
  useKeys({
    j: () => moveFocus(1), ArrowDown: () => moveFocus(1), k: () => moveFocus(-1), ArrowUp: () => moveFocus(-1),
    n: () => turnPage(1), p: () => turnPage(-1), '/': () => focusField(search), e: () => (expression.current ? focusField(expression) : false),
  });
  return html`
    <${Breadcrumbs} name=${`Rollouts of ${run.name}`} title=${html`Rollouts of <${Name} value=${run.name} />`}
      steps=${[['Overview', link([])], ...(query.has('finding') ? [['Findings', link(['runs', run.run, 'findings'])]] : [])]}>
      ${overview.training && html`<${StepLinks} training=${overview.training} run=${run.run} />`}
      ${!overview.training && overview.runs.length > 1 && html`<div class="row">
        <${RunSelect} label="Run" runs=${overview.runs} at=${String(run.run)} choose=${(other) => go(link(['runs', other]))} />
        <${RunSelect} label="Compare with" runs=${overview.runs.filter((one) => one !== run)} choose=${(other) => go(link(['compare', run.run, other]))} /></div>`}
    <//>
    <${FilterFold} query=${query} open=${unfolded} setOpen=${setUnfolded}>
      <${Filters} query=${query} page=${page} search=${search} change=${filter} />
      ${!IS_EXPORT && html`<${ListTools} run=${run} query=${query} change=${filter} expression=${expression} />`}
    <//>
    ${loading(page, error, 'Reading …')}
    ${page && html`<div ref=${list} class=${stale ? 'stale' : ''}>
      ${page.finding && html`<p><${Name} value=${page.finding.sentence} /></p>`}
      <${Summary} page=${page} run=${run} />
      <${RolloutTable} run=${run.run} page=${page} query=${query} notes=${notes.notes} />
      <${Paging} label="Pages of the list" start=${start} length=${PAGE_LENGTH} shown=${page.lines.length} total=${page.total} turn=${turnTo} />
    </div>`}
    <${Annotator} annotator=${annotator} />`;
}

function Summary({ page, run }) {
  const all = run.measured + run.failed;
  const available = page.exported ?? all;
  const omitted = all - available;
  return html`<p class="soft small" role="status">
    ${page.total === available ? pluralize(available, 'rollout') : `${count(page.total)} of ${pluralize(available, 'rollout')}`}
    ${omitted > 0 && ` in this file. The other ${count(omitted)} rollouts of the run were not exported and are neither filtered nor searched.`}
    ${page.searched < 1 && html` so far; read ${percent(page.searched, 0)} of the file${' '}
      <progress max="1" value=${page.searched} aria-label="Searched"></progress>`}
  </p>`;
}

/** Steps before and after that of a run. @param {any} training @param {number} run */
function neighbours(training, run) {
  const isEvaluation = run % 2 === 1;
  const step = Math.floor(run / 2);
  const steps = isEvaluation ? training.evaluations : training.rollouts;
  const at = steps.indexOf(step);
  const href = (to) => link(['runs', isEvaluation ? evaluationOf(to) : rolloutsOf(to)]);
  return { isEvaluation, step, href, before: at > 0 ? steps[at - 1] : undefined, after: steps[at + 1] };
}

/** Keys for the list of a step. They start from the address, so that a key pressed while the next step opens counts too. @param {any} training */
export function stepKeys(training) {
  const show = (side) => () => {
    const { path } = parse(location.hash);
    if (path[0] !== 'runs' || path.length !== 2) return false;
    const { href, [side]: step } = neighbours(training, Number(path[1]));
    return step !== undefined && go(href(step));
  };
  return { '[': show('before'), ']': show('after') };
}

export function StepLinks({ training, run }) {
  const { isEvaluation, step, href, before, after } = neighbours(training, run);
  const other = isEvaluation ? training.rollouts.includes(step) : training.evaluations.includes(step);
  return html`<nav class="row small" aria-label="Steps">
    ${before !== undefined && html`<a href=${href(before)}>← step ${before}</a>`}
    ${other && html`<a href=${link(['runs', isEvaluation ? rolloutsOf(step) : evaluationOf(step)])}>
      ${isEvaluation ? 'training rollouts' : 'evaluation'} of step ${step}</a>`}
    ${after !== undefined && html`<a href=${href(after)}>step ${after} →</a>`}
  </nav>`;
}
