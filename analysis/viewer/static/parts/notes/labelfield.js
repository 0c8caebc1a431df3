/** A field for a label, completed with the labels that were used before. */
import { html, useState } from '../../vendor/htm-preact.js';
import { escapeInvisible } from '../../text.js';
import { matchingLabels } from './rolloutnotes.js';

/** @param {{labels: {label: string, rollouts: number}[], choose: (label: string) => void}} props */
export function LabelField({ labels, choose }) {
  const [text, setText] = useState('');
  const [at, setAt] = useState(-1);
  const found = matchingLabels(labels, text);
  const move = (by) => setAt(Math.max(-1, Math.min(found.length - 1, at + by)));
  const onKeyDown = (event) => {
    if (event.key === 'ArrowDown') move(1);
    else if (event.key === 'ArrowUp') move(-1);
    else if (event.key === 'Tab' && !event.shiftKey && text && found.length && found[0] !== text) setText(found[Math.max(at, 0)]);
    else return;
    event.preventDefault();
  };
  const submit = (event) => {
    event.preventDefault();
    const label = (found[at] ?? text).trim();
    if (label) choose(label);
  };
  return html`<form onSubmit=${submit}>
    <label class="wide">Label<input type="text" name="label" autofocus autocomplete="off" maxlength="80" role="combobox" aria-expanded=${found.length > 0}
      aria-controls="known-labels" aria-activedescendant=${at >= 0 ? `known-label-${at}` : undefined} value=${text} onKeyDown=${onKeyDown}
      onInput=${(event) => {
        setText(event.target.value);
        setAt(-1);
      }} /></label>
    <ul id="known-labels" role="listbox" aria-label="Labels used before">${found.map((label, i) => html`
      <li id=${`known-label-${i}`} key=${label} role="option" aria-selected=${i === at} onClick=${() => choose(label)}>${escapeInvisible(label)}</li>`)}</ul>
    <p class="small soft">Enter adds the label, or removes it if you gave it. ↓ ↑ choose, Tab completes.</p>
  </form>`;
}
