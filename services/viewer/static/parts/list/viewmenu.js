/** Opens, saves and deletes named views, and sets the default view of the file. */
import { html, useState } from '../../vendor/htm-preact.js';
import { defaultView, saveView, savedViews, setDefaultView, viewOf } from '../../savedviews.js';
import { escapeInvisible } from '../../text.js';

/** @param {{query: URLSearchParams, file: string, open: (query: string) => void}} props */
export function ViewMenu({ query, file, open }) {
  const [name, setName] = useState('');
  const [note, setNote] = useState('');
  const views = savedViews();
  const now = viewOf(query);
  const current = views.find(([, saved]) => saved === now)?.[0] ?? '';
  const report = (kept, text) => setNote(kept ? text : 'The browser does not allow this page to store views.');
  const save = () => {
    if (!name.trim()) return;
    report(saveView(name.trim(), now), `Saved as ${name.trim()}.`);
    setName('');
  };
  const isDefault = defaultView(file) === now && now !== '';
  return html`<details class="chooser">
    <summary class="button">${current ? html`View: ${escapeInvisible(current)}` : 'Views'}</summary>
    <div class="choices">
      ${views.length > 0 && html`<ul>${views.map(([one, saved]) => html`<li key=${one} class="row">
        <button class="quiet" aria-pressed=${one === current ? 'true' : 'false'} onClick=${() => open(saved)}>${escapeInvisible(one)}</button>
        <button class="quiet" aria-label=${`Delete the view ${escapeInvisible(one)}`} onClick=${() => report(saveView(one, null), `Deleted ${one}.`)}>Delete</button>
      </li>`)}</ul>`}
      <div class="row"><input type="text" aria-label="Name of the view" placeholder="name" maxlength="80" value=${name}
        onInput=${(event) => setName(event.target.value)} onKeyDown=${(event) => event.key === 'Enter' && save()} />
        <button onClick=${save} disabled=${!name.trim()}>Save this view</button></div>
      <button onClick=${() => report(setDefaultView(file, isDefault ? '' : now), isDefault ? 'This file opens without a view.' : 'This file now opens with this view.')}
        disabled=${!now}>${isDefault ? 'Do not open this file with this view' : 'Open this file with this view'}</button>
      <p class="small soft" aria-live="polite">${note || 'A view is also in the address: copy it to share it.'}</p>
    </div>
  </details>`;
}
