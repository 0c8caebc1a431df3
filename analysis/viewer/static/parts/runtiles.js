/** The headline numbers of a run as tiles. */
import { html } from '../vendor/htm-preact.js';
import { Name } from '../text.js';
import { count, interval, percent, plain, pluralize } from '../formatting.js';

/** @param {{label: string, large: any, lines?: any[]}} props */
export function Tile({ label, large, lines = [] }) {
  return html`<div class="tile">
    <dt>${label}</dt><dd class="large">${large}</dd>${lines.filter(Boolean).map((line) => html`<dd>${line}</dd>`)}
  </div>`;
}

/** @param {{profile: any, run: any}} props */
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
