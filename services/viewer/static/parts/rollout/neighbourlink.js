/** A link to a neighbour, or a disabled button if there is none. */
import { html } from '../../vendor/htm-preact.js';

/** @param {{href: string | null, word: string, title: string}} props */
export function NeighbourLink({ href, word, title }) {
  return href ? html`<a class="button" href=${href} title=${title}>${word}</a>` : html`<button disabled>${word}</button>`;
}
