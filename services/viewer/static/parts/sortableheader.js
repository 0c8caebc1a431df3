/** A column header that sorts; the sort key is in the address. */
import { html } from '../vendor/htm-preact.js';
import { changed, go, link } from '../route.js';

const SIGNS = { ascending: '↑', descending: '↓' };

/**
 * @param {{name: string, sort: string, now: string, down?: boolean, words?: boolean, path: (string | number)[],
 *   query: URLSearchParams}} props  `sort`: its key; `now`: the key that the table is sorted by, `-` before it for descending;
 *   `down`: the first click sorts in descending order.
 */
export function SortableHeader({ name, sort, now, down = false, words = false, path, query }) {
  const way = now === sort ? 'ascending' : now === `-${sort}` ? 'descending' : undefined;
  const next = way === undefined ? (down ? `-${sort}` : sort) : way === 'descending' ? sort : `-${sort}`;
  const turn = () => go(link(path, changed(query, { sort: next, start: null })));
  return html`<th scope="col" class=${words ? 'words' : ''} aria-sort=${way}>
    <button onClick=${turn}>${name}<span aria-hidden="true">${SIGNS[way] ?? ''}</span></button>
  </th>`;
}
