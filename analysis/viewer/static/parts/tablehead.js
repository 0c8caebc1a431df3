/** The header row of a table without sorting. */
import { html } from '../vendor/htm-preact.js';

/** A header row; the columns in `leftAligned` are left-aligned. @param {{names: string[], leftAligned: string[]}} props */
export function TableHead({ names, leftAligned }) {
  return html`<thead><tr>${names.map((name) => html`
    <th scope="col" class=${leftAligned.includes(name) ? 'words' : ''}>${name}</th>`)}
  </tr></thead>`;
}
