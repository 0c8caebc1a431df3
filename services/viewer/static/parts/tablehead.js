/** The heads of a table that does not sort. */
import { html } from '../vendor/htm-preact.js';

/** A row of heads; those of `words` stand left. @param {{names: string[], words: string[]}} props */
export function TableHead({ names, words }) {
  return html`<thead><tr>${names.map((name) => html`
    <th scope="col" class=${words.includes(name) ? 'words' : ''}>${name}</th>`)}
  </tr></thead>`;
}
