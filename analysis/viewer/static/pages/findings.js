/** What stands out in a run, most important first, and all rollouts of one finding. */
import { html } from '../vendor/htm-preact.js';
import { IS_EXPORT, useData } from '../data.js';
import { count, percent, interval, plain } from '../formatting.js';
import { Breadcrumbs, loading, Notice, Paging } from '../parts/page.js';
import { Outcome } from '../parts/verdict.js';
import { link, changed, attemptLink, attemptsLink, go } from '../route.js';
import { runOf } from '../runs.js';
import { Name } from '../text.js';

const POLL_MS = 1000;
const CAUTION = 'Observations that deserve a look, most important first: by the share of the run’s reward that they concern. Only rewarded rollouts are reported as exploits.';

export function Findings({ route, overview }) {
  const run = runOf(overview, route.path[1]);
  if (route.path[3] !== undefined) return html`<${FindingRollouts} run=${run} kind=${route.path[3]} query=${route.query} />`;
  return html`<${Ranked} run=${run} runs=${overview.runs} />`;
}

/** The request contains the indexed size, so findings are loaded again when more of the file is read. */
function Ranked({ run, runs }) {
  const path = `runs/${run.run}/findings`;
  const { value, error, stale } = useData(`${path}?indexed=${run.indexed}`, (found) => (found && found.examined < 1 && !found.error ? POLL_MS : 0));
  return html`
    <${Breadcrumbs} name=${`Findings in ${run.name}`} steps=${[['Overview', link([])], ['Rollouts', link(['runs', run.run])]]}
      title=${html`Findings in <${Name} value=${run.name} />`}>
      ${runs.length > 1 && html`<nav class="row small" aria-label="Findings of other runs">
        ${runs.filter((one) => one.run !== run.run).map((one) => html`<a href=${link(['runs', one.run, 'findings'])}><${Name} value=${one.name} /></a>`)}
      </nav>`}
    <//>
    ${error && html`<${Notice} error=${error} />`}
    ${value?.error && html`<${Notice} error=${new Error(value.error)} />`}
    ${!value && !error && html`<${Notice} busy="Looking for findings …" />`}
    ${value && html`<div class=${stale ? 'stale' : ''}>
      <p class="soft small" role="status">
        ${`${count(value.rollouts)} measured rollouts examined`}
        ${value.examined < 1 && !IS_EXPORT && html` so far (${percent(value.examined, 0)} of the file)${' '}
          <progress max="1" value=${value.examined} aria-label="Examined"></progress>`}
      </p>
      <p class="soft small">${CAUTION}</p>
      ${value.findings.length === 0 && value.examined === 1 && html`<${Notice} text="Nothing stands out in this run." />`}
      <ol class="findings">${value.findings.map((finding, index) => html`
        <li key=${finding.kind}><${FindingCard} run=${run.run} rank=${index + 1} finding=${finding} /></li>`)}</ol>
    </div>`}`;
}

function FindingCard({ run, rank, finding }) {
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

const PAGE_LENGTH = 100;
const RETRY_MS = 1000;

function FindingRollouts({ run, kind, query }) {
  const wanted = Number(query.get('start') || 0);
  // The file may not have been examined yet, so that a missing finding is asked for again.
  const path = `runs/${run.run}/findings/${encodeURIComponent(kind)}/rollouts?start=${wanted}&limit=${PAGE_LENGTH}`;
  const { value, error, stale } = useData(path, (found) => (found ? 0 : RETRY_MS));
  const start = value && !stale ? value.page.start : wanted;
  const title = value?.finding.title ?? 'Finding';
  const steps = [['Overview', link([])], ['Rollouts', link(['runs', run.run])], ['Findings', link(['runs', run.run, 'findings'])]];
  const turnPage = (to) => go(link(['runs', run.run, 'findings', kind], changed(query, { start: to || null })));
  return html`
    <${Breadcrumbs} name=${`${title}: ${run.name}`} steps=${steps} title=${title} />
    ${loading(value, error, 'Looking for rollouts …')}
    ${value && html`
      <p><${Name} value=${value.finding.sentence} /></p>
      <p class="soft small" role="status">${count(value.page.total)} rollouts</p>
      <${Rows} run=${run.run} lines=${value.page.lines} />
      <${Paging} label="Pages of the list" start=${start} length=${PAGE_LENGTH} shown=${value.page.lines.length} total=${value.page.total} turn=${turnPage} />`}`;
}

function Rows({ run, lines }) {
  return html`<div class="table"><table class="wide">
    <caption class="hidden">Rollouts of the finding</caption>
    <thead><tr><th scope="col">rollout</th><th scope="col" class="words">outcome</th><th scope="col">reward</th>
      <th scope="col">calls</th><th scope="col">turns</th><th scope="col">tokens</th><th scope="col" class="words">end</th></tr></thead>
    <tbody>${lines.map((line) => html`<tr key=${`${line.task}/${line.repeat}`}>
      <th scope="row"><a href=${link(['runs', run, 'tasks', line.task, line.repeat])}>task ${line.task}, repeat ${line.repeat}</a></th>
      <td class="words"><${Outcome} line=${line} /></td><td>${plain(line.reward)}</td>
      <td>${count(line.tool_calls)}</td><td>${count(line.turns)}</td><td>${count(line.output_tokens)}</td>
      <td class="words"><${Name} value=${line.end} /></td></tr>`)}</tbody>
  </table></div>`;
}

const HEIGHT = 10;

function ShareBar({ share }) {
  const hasInterval = share.low !== null && share.high !== null;
  const label = `${percent(share.mean)} ${interval(share, percent)}`;
  return html`<svg class="sharebar" role="img" aria-label=${label} viewBox=${`0 0 100 ${HEIGHT}`} preserveAspectRatio="none">
    <rect class="all" x="0" y="0" width="100" height=${HEIGHT} />
    <rect class="part" x="0" y="0" width=${100 * share.mean} height=${HEIGHT} />
    ${hasInterval && html`<line class="reach" x1=${100 * share.low} x2=${100 * share.high} y1=${HEIGHT / 2} y2=${HEIGHT / 2} />`}
  </svg>`;
}
