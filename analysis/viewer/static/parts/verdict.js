/** The fields that explain a rollout's reward: gold answer beside the extracted one, or what came of a game; reason, tests, parts of the reward, limits. */
import { html } from '../vendor/htm-preact.js';
import { valueText } from '../columns.js';
import { exact, plain } from '../formatting.js';
import { Name, Text } from '../text.js';

const ROLES = { expected: 'Expected', extracted: 'Extracted', reason: 'Reason', tests: 'Tests', component: 'Reward', limit: 'Limit' };
const MAIN = new Set(['expected', 'extracted', 'outcome']);
const LONG = 80;
const NOT_HIT = new Set(['false', 'no', '0', 'none']);

/** A value. Of an answer, all digits are shown, and quotes around a text that is empty or begins or ends with spaces. */
function Value({ value, role, lines }) {
  if (value === null || value === undefined) return html`<span class="soft">none</span>`;
  if (typeof value === 'number') return html`<span class="number">${role === 'component' ? plain(value) : exact(value)}</span>`;
  const isPadded = (role === 'expected' || role === 'extracted') && typeof value === 'string' && (value === '' || value !== value.trim());
  const text = isPadded && !value.trim().includes('\n') ? JSON.stringify(value) : valueText(value);
  return text.length > LONG || text.includes('\n') ? html`<${Text} value=${text} lines=${lines} characters=${lines * 60} kind="mono" />` : html`<${Name} value=${text} />`;
}

/** Whether a value says nothing, such as a limit that was not hit. */
function isSilent({ role, value }) {
  const isEmpty = typeof value === 'object' && value !== null && Object.keys(value).length === 0; // a list of the limits that were hit
  return (role === 'limit' && (!value || isEmpty || NOT_HIT.has(String(value).toLowerCase()))) || (role !== 'extracted' && (value === null || value === ''));
}

/** Whether the label already says which role the field has. What came of a game has only its own words. */
const isNamed = ({ label, role }) => role === 'outcome' || label.toLowerCase().includes(role);

/** @param {{verdict: {path: string, label: string, role: string, value: unknown}[], lines?: number, label?: string}} props `label` makes it
 * a landmark, of which a page may have one with the same name. */
export function Verdict({ verdict, lines = 6, label }) {
  const shown = (verdict ?? []).filter((one) => !isSilent(one));
  if (!shown.length) return null;
  const answers = shown.filter((one) => MAIN.has(one.role));
  const others = shown.filter((one) => !answers.includes(one));
  const entry = (one) => html`<div key=${one.path} class=${one.role}><dt>${isNamed(one)
    ? html`<span class="role"><${Name} value=${one.label} /></span>`
    : html`<span class="role">${ROLES[one.role] ?? one.role}</span> <${Name} value=${one.label} />`}</dt><dd><${Value} value=${one.value} role=${one.role} lines=${lines} /></dd></div>`;
  return html`<section class="verdict" aria-label=${label}>
    ${answers.length > 0 && html`<dl class="answers">${answers.map(entry)}</dl>`}
    ${others.length > 0 && html`<dl class="others">${others.map(entry)}</dl>`}
  </section>`;
}

export function Outcome({ line }) {
  if (line.outcome === 'failed') return html`<span class="outcome bad"><span aria-hidden="true">! </span>failed</span>`;
  if (line.success === null) return html`<span class="outcome soft">measured</span>`;
  return line.success
    ? html`<span class="outcome good"><span aria-hidden="true">✓ </span>solved</span>`
    : html`<span class="outcome soft"><span aria-hidden="true">✗ </span>not solved</span>`;
}
