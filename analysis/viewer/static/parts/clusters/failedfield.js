/** The expression that decides which rollouts count as failed. */
import { html, useEffect, useState } from '../../vendor/htm-preact.js';

/** @param {{where: string, change: (text: string) => void}} props */
export function FailedField({ where, change }) {
  const [draft, setDraft] = useState(where);
  useEffect(() => setDraft(where), [where]);
  const apply = () => draft.trim() !== where && change(draft.trim());
  return html`<div class="filters"><label class="search">Rollouts that count as failed<input type="text" spellcheck="false" autocomplete="off" autocapitalize="off"
    placeholder="not solved; or an expression, such as reward < 0.5" value=${draft} onInput=${(event) => setDraft(event.target.value)} onBlur=${apply}
    onKeyDown=${(event) => {
      if (event.key === 'Enter') apply();
      if (event.key === 'Escape') event.target.blur();
    }} /></label></div>`;
}
