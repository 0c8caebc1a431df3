/** A link to a neighbour, or a disabled button if there is none. */
import { html } from '../../vendor/htm-preact.js';

/** @param {{href: string | null, label: string, title: string}} props */
export function NeighbourLink({ href, label, title }) {
  return href ? html`<a class="button" href=${href} title=${title}>${label}</a>` : html`<button disabled>${label}</button>`;
}
