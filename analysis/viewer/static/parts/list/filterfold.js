/** Folds the filters on a phone behind a button that says how many are active. On wide screens they are always shown. */
import { html } from '../../vendor/htm-preact.js';
import { pluralize } from '../../formatting.js';
import { activeFilters } from './activefilters.js';

/** @param {{query: URLSearchParams, open: boolean, setOpen: (open: boolean) => void, children: any}} props */
export function FilterFold({ query, open, setOpen, children }) {
  const active = activeFilters(query);
  return html`<div class=${`filter-fold ${open ? 'open' : ''}`}>
    <button class="fold-button" aria-expanded=${open ? 'true' : 'false'} aria-controls="list-filters" onClick=${() => setOpen(!open)}>
      Filters and columns${active > 0 && html` <span class="badge">${pluralize(active, 'filter')} active</span>`}
    </button>
    <div id="list-filters" class="fold-content">${children}</div>
  </div>`;
}
