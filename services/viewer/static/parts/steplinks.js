/** Links from the rollouts of a step, or of an evaluation, to those of its neighbours. */
import { html } from '../vendor/htm-preact.js';
import { useKeys } from '../keys.js';
import { go, link } from '../route.js';
import { evaluationOf, rolloutsOf } from '../runs.js';

/** @param {{training: any, run: number}} props */
export function StepLinks({ training, run }) {
  const isEvaluation = run % 2 === 1;
  const step = Math.floor(run / 2);
  const steps = isEvaluation ? training.evaluations : training.rollouts;
  const at = steps.indexOf(step);
  const href = (to) => link(['runs', isEvaluation ? evaluationOf(to) : rolloutsOf(to)]);
  const before = at > 0 ? steps[at - 1] : undefined;
  const after = steps[at + 1];
  const other = isEvaluation ? training.rollouts.includes(step) : training.evaluations.includes(step);
  useKeys({
    '[': () => before !== undefined && go(href(before)),
    ']': () => after !== undefined && go(href(after)),
  });
  return html`<nav class="row small" aria-label="Steps">
    ${before !== undefined && html`<a href=${href(before)}>← step ${before}</a>`}
    ${other && html`<a href=${link(['runs', isEvaluation ? rolloutsOf(step) : evaluationOf(step)])}>
      ${isEvaluation ? 'training rollouts' : 'evaluation'} of step ${step}</a>`}
    ${after !== undefined && html`<a href=${href(after)}>step ${after} →</a>`}
  </nav>`;
}
