/** A form for a verdict with a reason: correct, wrong, or the reward that the rollout should have. */
import { html, useState } from '../../vendor/htm-preact.js';
import { parseVerdict } from './rolloutnotes.js';

/** @param {{own: any, save: (record: any) => void}} props  `own`: the author's present verdict, or null */
export function VerdictForm({ own, save }) {
  const [text, setText] = useState(own ? String(own.verdict) : '');
  const [reason, setReason] = useState(own?.reason ?? '');
  const verdict = parseVerdict(text);
  const submit = (event) => {
    event.preventDefault();
    if (verdict !== null) save({ kind: 'override', verdict, reason: reason.trim() });
  };
  return html`<form onSubmit=${submit}>
    <label class="wide">Verdict<input type="text" name="verdict" autofocus autocomplete="off" list="verdicts" placeholder="correct, wrong or a reward"
      value=${text} aria-invalid=${text.trim() && verdict === null ? 'true' : undefined} aria-describedby="verdict-check"
      onInput=${(event) => setText(event.target.value)} /></label>
    <datalist id="verdicts"><option value="correct"></option><option value="wrong"></option></datalist>
    <p id="verdict-check" class="small bad" aria-live="polite">${text.trim() && verdict === null ? 'Expected correct, wrong or a number.' : ''}</p>
    <label class="wide">Reason<input type="text" name="reason" autocomplete="off" maxlength="20000" value=${reason} onInput=${(event) => setReason(event.target.value)} /></label>
    <button disabled=${verdict === null}>Save</button>
  </form>`;
}
