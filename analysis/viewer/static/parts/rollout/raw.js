/** The raw row of the file. */
import { html, useState } from '../../vendor/htm-preact.js';
import { IS_EXPORT, fetchText } from '../../data.js';
import { bytes } from '../../formatting.js';
import { JsonTree } from '../jsontree.js';
import { Notice } from '../notice.js';

/** @param {{path: string, name: string}} props */
export function Raw({ path, name }) {
  const [state, set] = useState({ text: null, value: null, error: null, copied: '' });
  if (IS_EXPORT) return null;
  const open = async (event) => {
    if (!event.currentTarget.open || state.text !== null) return;
    try {
      const text = await fetchText(path);
      set({ text, value: JSON.parse(text), error: null, copied: '' });
    } catch (error) {
      set({ text: null, value: null, error, copied: '' });
    }
  };
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(state.text);
      set({ ...state, copied: 'Copied.' });
    } catch {
      set({ ...state, copied: 'The browser does not allow this page to copy.' });
    }
  };
  return html`<section class="block" aria-label="Raw JSON"><details class="raw" onToggle=${open}>
    <summary><h2>Raw JSON</h2></summary>
    ${state.error && html`<${Notice} error=${state.error} />`}
    ${state.text !== null && html`
      <div class="row"><button onClick=${copy}>Copy</button><a class="button" href=${`api/${path}`} download=${name}>Download</a>
        <span class="small soft" role="status">${state.copied || bytes(new Blob([state.text]).size)}</span></div>
      <div class="tree"><${JsonTree} value=${state.value} open=${2} /></div>`}
  </details></section>`;
}
