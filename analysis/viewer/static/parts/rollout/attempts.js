/** The failed attempts of this rollout; each opens to what was said until it failed. */
import { html, useState } from '../../vendor/htm-preact.js';
import { Name, Text } from '../../text.js';
import { seconds } from '../../formatting.js';
import { LoadedAttempt } from '../attempts/attemptbody.js';
import { attemptLink } from '../attempts/attemptlink.js';

/** @param {number} unixSeconds */
function formatTime(unixSeconds) {
  return new Date(unixSeconds * 1000).toLocaleString('en-GB');
}

/** @param {{run: number, task: number, repeat: number, attempts: any[]}} props */
export function Attempts({ run, task, repeat, attempts }) {
  return attempts.length > 0 && html`<section class="block" aria-label="Failed attempts"><h2>Failed attempts</h2>
    <ol class="attempts">${attempts.map((one, at) => html`<li>
      <p><strong class="bad"><${Name} value=${one.kind} /></strong> at <${Name} value=${one.server} /> after ${seconds(one.seconds)}
        <span class="soft small"> attempt ${one.attempt + 1}${one.when > 0 && `, ${formatTime(one.when)}`}</span>
        ${' '}<a class="small" href=${attemptLink(run, { task, repeat, at })}>Open</a></p>
      <${Text} value=${one.detail} lines=${8} characters=${800} kind="mono" />
      ${one.has_conversation && html`<${Opening} run=${run} task=${task} repeat=${repeat} at=${at} />`}
    </li>`)}</ol>
  </section>`;
}

/** The conversation is loaded when it is opened. */
function Opening({ run, task, repeat, at }) {
  const [open, setOpen] = useState(false);
  return html`<details class="folded" onToggle=${(event) => setOpen(event.currentTarget.open)}>
    <summary>What was said until then</summary>
    ${open && html`<${LoadedAttempt} run=${run} task=${task} repeat=${repeat} at=${at} />`}
  </details>`;
}
