/** The headline numbers of a run as tiles. */
import { html } from '../vendor/htm-preact.js';
import { count, interval, percent, plain, pluralize, points, signed } from '../formatting.js';
import { Name } from '../text.js';

function Tile({ label, large, lines = [] }) {
  return html`<div class="tile">
    <dt>${label}</dt><dd class="large">${large}</dd>${lines.filter(Boolean).map((line) => html`<dd>${line}</dd>`)}
  </div>`;
}

export function RunTiles({ profile, run }) {
  const { coverage, solved, rewards, tasks, tool_calls: calls, tokens, failures } = profile;
  const last = tasks?.pass_at?.at(-1);
  const measured = count(coverage.measured);
  const failed = run.failed > 0 && html`<span class="bad">${count(run.failed)} without a reward</span>`;
  return html`<dl class="tiles">
    <${Tile} label="Measured" large=${coverage.expected === null ? measured : `${measured} of ${count(coverage.expected)}`}
      lines=${[pluralize(coverage.tasks_measured, 'task'), failed]} />
    ${solved && html`<${Tile} label="Success rate" large=${percent(solved.rate.mean)}
      lines=${[interval(solved.rate, percent), bounds(solved.bounds, coverage, percent),
        html`<${Name} value=${solved.rule} />`]} />`}
    ${rewards && !rewards.why_no_mean && html`<${Tile} label="Mean reward" large=${plain(rewards.mean.mean)}
      lines=${[interval(rewards.mean, plain), bounds(rewards.bounds, coverage, plain),
        `median ${plain(rewards.median)}, ${plain(rewards.min)} to ${plain(rewards.max)}`]} />`}
    ${last && last.k > 1 && html`<${Tile} label=${`pass@${last.k}`} large=${percent(last.any.mean)}
      lines=${[interval(last.any, percent), `pass^${last.k} ${percent(last.every.mean)}`,
        last.consensus && `cons@${last.k} ${percent(last.consensus.mean)}`,
        last.tasks < last.tasks_measured && `over ${count(last.tasks)} of ${count(last.tasks_measured)} tasks`]} />`}
    ${calls && html`<${Tile} label="Tool calls" large=${plain(calls.mean)}
      lines=${[`${calls.min} to ${calls.max}`,
        calls.correlation !== null && !rewards?.why_no_mean && `correlation with reward ${plain(Number(calls.correlation.toFixed(2)))}`]} />`}
    ${tokens.output && html`<${Tile} label="Output tokens" large=${plain(tokens.output.mean)}
      lines=${[`median ${plain(tokens.output.median)}, p95 ${plain(tokens.output.p95)}`,
        tokens.per_solved !== null && `${count(Math.round(tokens.per_solved))} tokens per solved rollout`]} />`}
    ${failures.attempts > 0 && html`<${Tile} label="Failed attempts" large=${count(failures.attempts)}
      lines=${[`${count(failures.mended)} recovered, ${count(failures.lost)} lost`]} />`}
  </dl>`;
}

/** The bounds if rollouts are missing; otherwise an empty text. */
function bounds(found, coverage, format) {
  const missing = coverage.expected !== null && coverage.expected > coverage.measured;
  if (!missing || found.lowest === null || found.highest === null) return '';
  return `${format(found.lowest)} to ${format(found.highest)} including missing rollouts`;
}

export function DifferenceTiles({ difference, names }) {
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
