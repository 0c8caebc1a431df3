/** All rollouts of one finding, as pages of the list. */
import { html } from '../../vendor/htm-preact.js';
import { useData } from '../../data.js';
import { changed, go, link } from '../../route.js';
import { Name } from '../../text.js';
import { count, plain } from '../../formatting.js';
import { Notice, Breadcrumbs } from '../notice.js';
import { Outcome } from '../rollout/outcome.js';

const PAGE_LENGTH = 100;
const RETRY_MS = 1000;

/** @param {{run: any, kind: string, query: URLSearchParams}} props */
export function FindingRollouts({ run, kind, query }) {
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
    ${error && html`<${Notice} error=${error} />`}
    ${!value && !error && html`<${Notice} busy="Looking for rollouts …" />`}
    ${value && html`
      <p><${Name} value=${value.finding.sentence} /></p>
      <p class="soft small" role="status">${count(value.page.total)} rollouts</p>
      <${Rows} run=${run.run} lines=${value.page.lines} />
      ${value.page.total > PAGE_LENGTH && html`<nav class="paging" aria-label="Pages of the list">
        <button onClick=${() => turnPage(start - PAGE_LENGTH)} disabled=${start === 0}>Previous</button>
        <span class="number small">${count(start + 1)}–${count(start + value.page.lines.length)} of ${count(value.page.total)}</span>
        <button onClick=${() => turnPage(start + PAGE_LENGTH)} disabled=${start + PAGE_LENGTH >= value.page.total}>Next</button>
      </nav>`}`}`;
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
