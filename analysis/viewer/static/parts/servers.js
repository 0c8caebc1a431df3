/** The servers of a run. */
import { html } from '../vendor/htm-preact.js';
import { Name } from '../text.js';
import { count, seconds } from '../formatting.js';
import { TableHead } from './tablehead.js';

const COLUMNS = ['name', 'state', 'requests/s', 'requests', 'in flight', 'sessions', 'restarts', 'up'];

/** @param {{servers: any[]}} props */
export function Servers({ servers }) {
  return html`<section class="block" aria-label="Servers"><h2>Servers</h2>
    <div class="table" tabindex="0" role="region" aria-label="Servers"><table class="wide">
      <${TableHead} names=${COLUMNS} leftAligned=${['name', 'state']} />
      <tbody>${servers.map((one) => html`<tr key=${one.process_name}>
        <th scope="row" class="words"><${Name} value=${one.process_name} /></th>
        <td class=${`words ${one.ready ? 'good' : 'bad'}`}>
          ${one.ready ? 'ready' : one.status}${one.phase && html`: <${Name} value=${one.phase} />`}
        </td>
        <td>${one.requests_per_s.toFixed(1)}</td><td>${count(one.requests)}</td>
        <td>${count(one.in_flight)}</td><td>${count(one.sessions)}</td>
        <td class=${one.restarts > 0 ? 'bad' : ''}>${count(one.restarts)}</td><td>${seconds(one.uptime_seconds)}</td>
      </tr>`)}</tbody>
    </table></div>
  </section>`;
}
