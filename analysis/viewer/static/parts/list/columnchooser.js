/** Chooses the columns of the list. */
import { html, useState } from '../../vendor/htm-preact.js';
import { DEFAULT_COLUMNS } from '../../columns.js';
import { escapeInvisible } from '../../text.js';

const NAMES = new Map(Object.entries({ success: 'outcome', tool_calls: 'calls', output_tokens: 'tokens', seconds: 'time', '(prompt)': 'prompt', '(verdict)': 'verdict: expected, extracted, reason, tests, parts of the reward, limits' }));
const MAX_SHOWN = 60;

/** Keys are untrusted: a row may have one that is called `constructor`. */
const nameOf = (key) => NAMES.get(key) ?? key;

/** @param {{names: string[], keys: string[], change: (names: string[]) => void}} props */
export function ColumnChooser({ names, keys, change }) {
  const [text, setText] = useState('');
  const all = [...new Set([...DEFAULT_COLUMNS, ...names, ...keys])].filter((key) => key !== 'task');
  const found = all.filter((key) => nameOf(key).toLowerCase().includes(text.toLowerCase()));
  const toggle = (key) => change(names.includes(key) ? names.filter((one) => one !== key) : [...names, key]);
  return html`<details class="chooser">
    <summary class="button">Columns</summary>
    <div class="choices">
      <input type="search" aria-label="Find a column" placeholder="find a column" value=${text} onInput=${(event) => setText(event.target.value)} />
      <ul>${found.slice(0, MAX_SHOWN).map((key) => html`<li key=${key}><label class="check"><input type="checkbox" checked=${names.includes(key)}
        disabled=${names.length === 1 && names.includes(key)} onChange=${() => toggle(key)} />${escapeInvisible(nameOf(key))}</label></li>`)}</ul>
      ${found.length > MAX_SHOWN && html`<p class="small soft">${found.length - MAX_SHOWN} more; type a part of the name.</p>`}
      <button onClick=${() => change([])}>Default columns</button>
    </div>
  </details>`;
}
