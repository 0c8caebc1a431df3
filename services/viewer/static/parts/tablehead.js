/** The header row of a table without sorting. */
import { html } from '../vendor/htm-preact.js';

/** A header row; the columns in `words` are left-aligned. @param {{names: string[], words: string[]}} props */
export function TableHead({ names, words }) {
  return html`<thead><tr>${names.map((name) => html`
    <th scope="col" class=${words.includes(name) ? 'words' : ''}>${name}</th>`)}
  </tr></thead>`;
}
