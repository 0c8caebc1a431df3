/** Recent failed attempts of all collections, latest first, with links to what was said. */
import { html } from '../vendor/htm-preact.js';
import { Name, escapeInvisible } from '../text.js';
import { attemptLink, runOfOutput } from './attempts/attemptlink.js';
import { TableHead } from './tablehead.js';

const SHOWN = 50;

/** @param {{collections: any[], overview: any}} props */
export function RecentFailures({ collections, overview }) {
  const rows = collections.flatMap(({ output, failures }) => failures.map((row) => ({ row, run: runOfOutput(overview, output) })));
  const latest = rows.sort((a, b) => b.row.time - a.row.time).slice(0, SHOWN);
  return latest.length > 0 && html`<section class="block" aria-label="Failed attempts"><h2>Failed attempts</h2>
    <div class="table" tabindex="0" role="region" aria-label="Failed attempts"><table class="wide">
      <${TableHead} names=${['when', 'task', 'repeat', 'kind', 'server', 'detail']} leftAligned=${['when', 'kind', 'server', 'detail']} />
      <tbody>${latest.map(({ row, run }) => html`<tr>
        <th scope="row" class="words">${run
          ? html`<a href=${attemptLink(run.run, { task: row._ng_task_index, repeat: row._ng_rollout_index, at: row._ng_attempt_index })}>${time(row)}</a>`
          : time(row)}</th>
        <td>${row._ng_task_index}</td><td>${row._ng_rollout_index}</td>
        <td class="words"><${Name} value=${row.failure_kind} /></td><td class="words"><${Name} value=${row.server} /></td>
        <td class="words" title=${escapeInvisible(row.detail)}><${Name} value=${row.detail} /></td>
      </tr>`)}</tbody>
    </table></div>
  </section>`;
}

function time(row) {
  return new Date(row.time * 1000).toLocaleTimeString('en-GB');
}
