/** Links and keys from the rollouts of a step, or of an evaluation, to those of its neighbours. */
import { html } from '../vendor/htm-preact.js';
import { go, link, parse } from '../route.js';
import { evaluationOf, rolloutsOf } from '../runs.js';

/** Steps before and after that of a run. @param {any} training @param {number} run */
function neighbours(training, run) {
  const isEvaluation = run % 2 === 1;
  const step = Math.floor(run / 2);
  const steps = isEvaluation ? training.evaluations : training.rollouts;
  const at = steps.indexOf(step);
  const href = (to) => link(['runs', isEvaluation ? evaluationOf(to) : rolloutsOf(to)]);
  return { isEvaluation, step, href, before: at > 0 ? steps[at - 1] : undefined, after: steps[at + 1] };
}

/**
 * Keys for the list of a step. They start from the address, so that a key pressed while the next step opens counts too.
 * @param {any} training
 */
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
