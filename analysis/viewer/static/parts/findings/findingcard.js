/** A finding as a card: its sentence, its share with the interval as a bar, and examples one click away. */
import { html } from '../../vendor/htm-preact.js';
import { IS_EXPORT } from '../../data.js';
import { changed, link } from '../../route.js';
import { attemptLink, attemptsLink } from '../attempts/attemptlink.js';
import { Name } from '../../text.js';
import { count, interval, percent, plain } from '../../formatting.js';
import { ShareBar } from './sharebar.js';

/** @param {{run: number, rank: number, finding: any}} props */
export function FindingCard({ run, rank, finding }) {
  const { share, mean_reward: inside, mean_reward_others: outside } = finding;
  return html`<article class="finding ${finding.category}" aria-label=${finding.title}>
    <header><h2><span class="soft">${rank}</span> ${finding.title}</h2><span class="badge">${finding.category}</span></header>
    <p><${Name} value=${finding.sentence} /></p>
    <${ShareBar} share=${share} />
    <dl class="inline">
      <div><dt>share</dt><dd>${percent(share.mean)} <span class="soft">${interval(share, percent)}</span></dd></div>
      <div><dt>tasks</dt><dd>${count(finding.tasks)}</dd></div>
      ${inside && html`<div><dt>mean reward</dt><dd>${plain(inside.mean)} <span class="soft">${interval(inside, plain)}</span></dd></div>`}
      ${outside && html`<div><dt>others</dt><dd>${plain(outside.mean)} <span class="soft">${interval(outside, plain)}</span></dd></div>`}
      ${finding.solved !== null && html`<div><dt>solved</dt><dd>${count(finding.solved)} of ${count(finding.count)}</dd></div>`}
      <div><dt>reward concerned</dt><dd>${percent(finding.stake)}</dd></div>
    </dl>
    <p class="row small">
      <span class="soft">Examples</span>
      ${finding.examples.map((one) => html`<a href=${exampleOf(run, finding, one)}>task ${one.task}, repeat ${one.repeat}</a>`)}
      ${!IS_EXPORT && html`<a class="button" href=${allOf(run, finding)}>All ${count(finding.count)} ${finding.unit}</a>`}
    </p>
    <details class="folded"><summary>What is counted</summary><p class="small">${finding.definition}</p></details>
  </article>`;
}

/** An example: a rollout, or the first failed attempt at it. */
function exampleOf(run, finding, { task, repeat }) {
  return finding.unit === 'attempts' ? attemptLink(run, { task, repeat, at: 0 }) : link(['runs', run, 'tasks', task, repeat]);
}

/** The list of all rollouts of a finding: the filtered list if its filters can express it. @param {number} run @param {any} finding */
function allOf(run, finding) {
  if (finding.unit === 'attempts') return attemptsLink(run, { finding: finding.kind });
  if (Object.keys(finding.filters).length) return link(['runs', run], changed(new URLSearchParams(), finding.filters));
  return link(['runs', run, 'findings', finding.kind]);
}
