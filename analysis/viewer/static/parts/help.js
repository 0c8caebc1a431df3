/** The dialog of keyboard shortcuts. */
import { html, useEffect, useRef } from '../vendor/htm-preact.js';
import { KEYS } from '../keys.js';
import { useNavigation } from '../route.js';

/** @param {{open: boolean, close: () => void}} props */
export function Help({ open, close }) {
  const dialog = useRef(null);
  useEffect(() => {
    if (open && !dialog.current.open) dialog.current.showModal();
    if (!open && dialog.current.open) dialog.current.close();
  }, [open]);
  useNavigation(close);
  return html`<dialog ref=${dialog} class="help" onClose=${close} aria-labelledby="help-title">
    <h2 id="help-title">Keys</h2>
    <div class="groups">${KEYS.map(([page, keys]) => html`<section>
      <h3>${page}</h3>
      <dl>${keys.map(([key, action]) => html`<div>
        <dt>${key.split('  ').map((one) => html`<kbd>${one}</kbd> `)}</dt><dd>${action}</dd>
      </div>`)}</dl>
    </section>`)}</div>
    <form method="dialog"><button>Close</button></form>
  </dialog>`;
}
