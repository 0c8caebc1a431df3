/** The filters of the list. Every change updates the address immediately. */
import { html, useEffect, useRef, useState } from '../vendor/htm-preact.js';
import { activeFilters } from '../filtering.js';
import { pluralize } from '../formatting.js';
import { escapeInvisible } from '../text.js';

const DEBOUNCE_MS = 350;

/** A field that applies its text when the user stops typing for a moment. */
function Field({ label, value, change, type = 'text', inputRef, ...others }) {
  const [draft, setDraft] = useState(value);
  const timer = useRef(0);
  useEffect(() => setDraft(value), [value]);
  useEffect(() => () => clearTimeout(timer.current), []);
  const apply = (text) => {
    clearTimeout(timer.current);
    if (text !== value) change(text);
  };
  return html`<input ref=${inputRef} type=${type} aria-label=${label} value=${draft} ...${others}
    onInput=${(event) => {
      const text = event.target.value;
      setDraft(text);
      clearTimeout(timer.current);
      timer.current = setTimeout(() => apply(text), DEBOUNCE_MS);
    }}
    onKeyDown=${(event) => {
      if (event.key === 'Enter') apply(event.target.value);
      if (event.key === 'Escape') event.target.blur();
    }} />`;
}

function Choice({ label, value, change, options }) {
  return html`<label>${label}<select onChange=${(event) => change(event.target.value)}>
    <option value="" selected=${!value}>any</option>
    ${options.map(([key, label]) => html`<option value=${key} selected=${key === value}>${escapeInvisible(label)}</option>`)}
  </select></label>`;
}

function Range({ label, name, query, change, step }) {
  const field = (end, hint) => html`<${Field} type="number" step=${step} label=${`${label}, ${hint}`} placeholder=${hint}
    value=${query.get(`${end}_${name}`) || ''} change=${(value) => change({ [`${end}_${name}`]: value })} />`;
  return html`<fieldset><legend>${label}</legend><div class="pair">${field('min', 'from')}–${field('max', 'to')}</div></fieldset>`;
}

export function Filters({ query, page, search, change }) {
  const current = (name) => query.get(name) || '';
  const set = (name) => (value) => change({ [name]: value });
  const named = (values) => (values ?? []).map((value) => [value, value]);
  const isFiltered = [...query.keys()].some((key) => !['sort', 'start', 'columns', 'facet'].includes(key));
  const clear = () => change(Object.fromEntries([...query.keys()].filter((key) => !['sort', 'columns', 'facet'].includes(key)).map((key) => [key, null])));
  return html`<div class="filters" role="search" aria-label="Filter rollouts">
    <label class="search">Search in the text<${Field} type="search" inputRef=${search} label="Search in the text"
      placeholder="any text  ( / )" value=${current('q')} change=${set('q')} /></label>
    <${Choice} label="Success" value=${current('success')} change=${set('success')} options=${[['true', 'solved'], ['false', 'not solved']]} />
    <${Choice} label="Outcome" value=${current('outcome')} change=${set('outcome')} options=${named(['measured', 'failed'])} />
    <${Choice} label="End" value=${current('end')} change=${set('end')} options=${named(page?.ends)} />
    ${(page?.agents ?? []).length > 1 && html`<${Choice} label="Agent" value=${current('agent')} change=${set('agent')}
      options=${named(page.agents)} />`}
    <${Range} label="Reward" name="reward" step="any" query=${query} change=${change} />
    <${Range} label="Tool calls" name="tool_calls" step="1" query=${query} change=${change} />
    <label>Task<${Field} type="number" min="0" label="Task" value=${current('task')} change=${set('task')} /></label>
    <label>Repeat<${Field} type="number" min="0" label="Repeat" value=${current('repeat')} change=${set('repeat')} /></label>
    ${isFiltered && html`<button onClick=${clear}>Clear</button>`}
  </div>`;
}

export function FilterFold({ query, open, setOpen, children }) {
  const active = activeFilters(query);
  return html`<div class=${`filter-fold ${open ? 'open' : ''}`}>
    <button class="fold-button" aria-expanded=${open ? 'true' : 'false'} aria-controls="list-filters" onClick=${() => setOpen(!open)}>
      Filters and columns${active > 0 && html` <span class="badge">${pluralize(active, 'filter')} active</span>`}
    </button>
    <div id="list-filters" class="fold-content">${children}</div>
  </div>`;
}
