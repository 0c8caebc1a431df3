/** Messages of the page: errors, loading states, missing content. */
import { html, useEffect } from '../vendor/htm-preact.js';
import { Name } from '../text.js';

/** @param {{text?: string, error?: Error | null, busy?: string}} props */
export function Notice({ text, error, busy }) {
  if (busy) return html`<p class="message busy" role="status">${busy}</p>`;
  return html`<div class="message ${error ? 'wrong' : ''}" role=${error ? 'alert' : undefined}>
    <p><${Name} value=${error ? error.message : text} /></p>
  </div>`;
}

/**
 * The path from the overview to this page, and its title.
 * @param {{steps: [any, string][], title: any, name: string, children?: any}} props
 */
export function Breadcrumbs({ steps, title, name, children }) {
  useEffect(() => {
    document.title = `${name} · Rollyard`;
  }, [name]);
  return html`<div class="trail">
    ${steps.length > 0 && html`<nav aria-label="Breadcrumbs"><ol>
      ${steps.map(([label, href]) => html`<li><a href=${href}>${label}</a></li>`)}
    </ol></nav>`}
    <div class="headline"><h1>${title}</h1>${children}</div>
  </div>`;
}
