/** The failed attempts of this rollout. */
import { html } from '../../vendor/htm-preact.js';
import { Name, Text } from '../../text.js';
import { seconds } from '../../formatting.js';

/** @param {number} unixSeconds */
function formatTime(unixSeconds) {
  return new Date(unixSeconds * 1000).toLocaleString('en-GB');
}

/** @param {{attempts: any[]}} props */
export function Attempts({ attempts }) {
  return attempts.length > 0 && html`<section class="block" aria-label="Failed attempts"><h2>Failed attempts</h2>
    <ol class="attempts">${attempts.map((one) => html`<li>
      <p><strong class="bad"><${Name} value=${one.kind} /></strong> at <${Name} value=${one.server} /> after ${seconds(one.seconds)}
        <span class="soft small"> attempt ${one.attempt + 1}${one.when > 0 && `, ${formatTime(one.when)}`}</span></p>
      <${Text} value=${one.detail} lines=${8} characters=${800} kind="mono" />
    </li>`)}</ol>
  </section>`;
}
