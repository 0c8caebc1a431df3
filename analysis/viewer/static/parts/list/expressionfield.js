/** The field for an expression: checked while typing, applied with Enter or when it loses the focus, restored with Escape. */
import { html, useEffect, useRef, useState } from '../../vendor/htm-preact.js';
import { completions } from '../../columns.js';
import { useData } from '../../data.js';

const CHECK_AFTER_MS = 200;

/** @param {{run: number, value: string, keys: string[], inputRef: any, change: (text: string) => void}} props */
export function ExpressionField({ run, value, keys, inputRef, change }) {
  const [draft, setDraft] = useState(value);
  const [checked, setChecked] = useState(value);
  const cancelled = useRef(false);
  useEffect(() => setDraft(value), [value]);
  useEffect(() => {
    const timer = setTimeout(() => setChecked(draft), CHECK_AFTER_MS);
    return () => clearTimeout(timer);
  }, [draft]);
  const text = checked.trim();
  const { value: check } = useData(text ? `runs/${run}/expression?${new URLSearchParams({ text })}` : null);
  const found = text && draft.trim() === text ? check : null;
  const apply = (event) => {
    if (cancelled.current) return;
    const typed = event.target.value.trim(); // the draft may not be rendered yet
    if (typed !== value) change(typed);
  };
  return html`<div class="expression">
    <label>Expression<input type="text" ref=${inputRef} list="expression-keys" autocomplete="off" spellcheck="false" autocapitalize="off"
      placeholder="reward < 0.5 and tool_calls > 3  ( e )" value=${draft} aria-invalid=${found?.error ? 'true' : undefined}
      aria-describedby="expression-check" onInput=${(event) => setDraft(event.target.value)} onBlur=${apply}
      onKeyDown=${(event) => {
        if (event.key === 'Enter') apply(event);
        if (event.key === 'Escape') {
          setDraft(value);
          cancelled.current = true;
          event.target.blur();
          cancelled.current = false;
        }
      }} /></label>
    <datalist id="expression-keys">${completions(draft, keys).map((one) => html`<option key=${one} value=${one}></option>`)}</datalist>
    <p id="expression-check" class=${`small ${found?.error ? 'bad' : 'soft'}`} aria-live="polite">${found ? found.error || found.hint : ''}</p>
  </div>`;
}
