/** Recent failed attempts, latest first. */
import { html } from '../vendor/htm-preact.js';
import { Name, escapeInvisible } from '../text.js';
import { TableHead } from './tablehead.js';

/** @param {{failures: any[]}} props */
export function RecentFailures({ failures }) {
  return failures.length > 0 && html`<section class="block" aria-label="Failed attempts"><h2>Failed attempts</h2>
    <div class="table" tabindex="0" role="region" aria-label="Failed attempts"><table class="wide">
      <${TableHead} names=${['when', 'task', 'repeat', 'kind', 'server', 'detail']} leftAligned=${['when', 'kind', 'server', 'detail']} />
      <tbody>${[...failures].reverse().map((row) => html`<tr>
        <th scope="row" class="words">${new Date(row.time * 1000).toLocaleTimeString('en-GB')}</th>
        <td>${row._ng_task_index}</td><td>${row._ng_rollout_index}</td>
        <td class="words"><${Name} value=${row.failure_kind} /></td><td class="words"><${Name} value=${row.server} /></td>
        <td class="words" title=${escapeInvisible(row.detail)}><${Name} value=${row.detail} /></td>
      </tr>`)}</tbody>
    </table></div>
  </section>`;
}
