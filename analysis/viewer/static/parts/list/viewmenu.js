/** Opens, saves and deletes named views, and sets the default view of the file. */
import { html, useRef, useState } from '../../vendor/htm-preact.js';
import { defaultView, saveView, savedViews, setDefaultView, viewOf } from '../../savedviews.js';
import { escapeInvisible } from '../../text.js';

/** @param {{query: URLSearchParams, file: string, open: (query: string) => void}} props */
export function ViewMenu({ query, file, open }) {
  const [name, setName] = useState('');
  const [note, setNote] = useState('');
  /** The name and the query that the last action replaced or deleted. */
  const [before, setBefore] = useState(null);
  const summary = useRef(null);
  const views = savedViews();
  const now = viewOf(query);
  const current = views.find(([, saved]) => saved === now)?.[0] ?? '';
  const report = (kept, text) => setNote(kept ? text : 'The browser does not allow this page to store views.');
  const wanted = name.trim();
  const replaced = views.find(([one]) => one === wanted) ?? null;
  const save = () => {
    if (!wanted) return;
    report(saveView(wanted, now), replaced ? `Replaced ${wanted}.` : `Saved as ${wanted}.`);
    setBefore(replaced);
    setName('');
  };
  const remove = (view) => {
    report(saveView(view[0], null), `Deleted ${view[0]}.`);
    setBefore(view);
    summary.current.focus();
  };
  const undo = () => {
    report(saveView(...before), `${before[0]} is as before.`);
    setBefore(null);
    summary.current.focus();
  };
  const isDefault = defaultView(file) === now && now !== '';
  return html`<details class="chooser">
    <summary class="button" ref=${summary}>${current ? html`View: ${escapeInvisible(current)}` : 'Views'}</summary>
    <div class="choices">
      ${views.length > 0 && html`<ul>${views.map(([one, saved]) => html`<li key=${one} class="row">
        <button class="quiet" aria-pressed=${one === current ? 'true' : 'false'} onClick=${() => open(saved)}>${escapeInvisible(one)}</button>
        <button class="quiet" aria-label=${`Delete the view ${escapeInvisible(one)}`} onClick=${() => remove([one, saved])}>Delete</button>
      </li>`)}</ul>`}
      <div class="row"><input type="text" aria-label="Name of the view" placeholder="name" maxlength="80" value=${name}
        onInput=${(event) => setName(event.target.value)} onKeyDown=${(event) => event.key === 'Enter' && save()} />
        <button onClick=${save} disabled=${!wanted}>${replaced ? 'Replace that view' : 'Save this view'}</button></div>
      <button onClick=${() => report(setDefaultView(file, isDefault ? '' : now), isDefault ? 'This file opens without a view.' : 'This file now opens with this view.')}
        disabled=${!now}>${isDefault ? 'Do not open this file with this view' : 'Open this file with this view'}</button>
      ${before && html`<button onClick=${undo}>Undo</button>`}
      <p class="small soft" aria-live="polite">${note || 'A view is also in the address: copy it to share it.'}</p>
    </div>
  </details>`;
}
