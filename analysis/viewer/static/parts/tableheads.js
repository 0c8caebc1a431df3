/** The header row of a table without sorting. */
import { html } from '../vendor/htm-preact.js';
import { changed, go, link } from '../route.js';

/** A header row; the columns in `leftAligned` are left-aligned. @param {{names: string[], leftAligned: string[]}} props */
export function TableHead({ names, leftAligned }) {
  return html`<thead><tr>${names.map((name) => html`
    <th scope="col" class=${leftAligned.includes(name) ? 'words' : ''}>${name}</th>`)}
  </tr></thead>`;
}

const ARROWS = { ascending: '↑', descending: '↓' };

/**
 * @param {{name: string, sort: string, now: string, descending?: boolean, leftAligned?: boolean, path: (string | number)[],
 *   query: URLSearchParams}} props  `sort`: its key; `now`: the key that the table is sorted by, `-` before it for descending;
 *   `descending`: the first click sorts in descending order.
 */
export function SortableHeader({ name, sort, now, descending = false, leftAligned = false, path, query }) {
  const direction = now === sort ? 'ascending' : now === `-${sort}` ? 'descending' : undefined;
  const next = direction === undefined ? (descending ? `-${sort}` : sort) : direction === 'descending' ? sort : `-${sort}`;
  const sortTable = () => go(link(path, changed(query, { sort: next, start: null })));
  return html`<th scope="col" class=${leftAligned ? 'words' : ''} aria-sort=${direction}>
    <button onClick=${sortTable}>${name}<span aria-hidden="true">${ARROWS[direction] ?? ''}</span></button>
  </th>`;
}
