/** A form for a note. */
import { html, useState } from '../../vendor/htm-preact.js';

/** @param {{draft?: any, save: (record: any) => void}} props  `draft`: a note that could not be saved */
export function NoteForm({ draft, save }) {
  const [text, setText] = useState(draft?.text ?? '');
  const submit = (event) => {
    event.preventDefault();
    if (text.trim()) save({ kind: 'note', text: text.trim() });
  };
  return html`<form onSubmit=${submit}>
    <label class="wide">Note<textarea name="note" autofocus rows="4" maxlength="20000" value=${text} onInput=${(event) => setText(event.target.value)}
      onKeyDown=${(event) => event.key === 'Enter' && !event.shiftKey && submit(event)}></textarea></label>
    <p class="small soft">Enter saves, Shift+Enter starts a new line.</p>
    <button disabled=${!text.trim()}>Save</button>
  </form>`;
}
