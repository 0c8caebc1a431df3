/** The filters of the list. Every change updates the address immediately. */
import { html, useEffect, useRef, useState } from '../vendor/htm-preact.js';
import { spelled } from '../text.js';

const PAUSE_MS = 350;

/** A field that applies its text when the user pauses typing. */
function Field({ label, value, change, type = 'text', refer, ...others }) {
  const [written, setWritten] = useState(value);
  const timer = useRef(0);
  useEffect(() => setWritten(value), [value]);
  useEffect(() => () => clearTimeout(timer.current), []);
  const take = (text) => {
    clearTimeout(timer.current);
    if (text !== value) change(text);
  };
  return html`<input ref=${refer} type=${type} aria-label=${label} value=${written} ...${others}
    onInput=${(event) => {
      const text = event.target.value;
      setWritten(text);
      clearTimeout(timer.current);
      timer.current = setTimeout(() => take(text), PAUSE_MS);
    }}
    onKeyDown=${(event) => {
      if (event.key === 'Enter') take(event.target.value);
      if (event.key === 'Escape') event.target.blur();
    }} />`;
}

function Choice({ label, value, change, options }) {
  return html`<label>${label}<select onChange=${(event) => change(event.target.value)}>
    <option value="" selected=${!value}>any</option>
    ${options.map(([key, said]) => html`<option value=${key} selected=${key === value}>${spelled(said)}</option>`)}
  </select></label>`;
}

function Range({ label, name, query, change, step }) {
  const field = (end, said) => html`<${Field} type="number" step=${step} label=${`${label}, ${said}`} placeholder=${said}
    value=${query.get(`${end}_${name}`) || ''} change=${(value) => change({ [`${end}_${name}`]: value })} />`;
  return html`<fieldset><legend>${label}</legend><div class="pair">${field('min', 'from')}–${field('max', 'to')}</div></fieldset>`;
}

/** @param {{query: URLSearchParams, page: any, search: any, change: (changes: Record<string, string | null>) => void}} props */
export function Filters({ query, page, search, change }) {
  const at = (name) => query.get(name) || '';
  const set = (name) => (value) => change({ [name]: value });
  const named = (values) => (values ?? []).map((value) => [value, value]);
  const any = [...query.keys()].some((key) => key !== 'sort' && key !== 'start');
  const clear = () => change(Object.fromEntries([...query.keys()].filter((key) => key !== 'sort').map((key) => [key, null])));
  return html`<div class="filters" role="search" aria-label="Filter rollouts">
    <label class="search">Search in the text<${Field} type="search" refer=${search} label="Search in the text"
      placeholder="any text  ( / )" value=${at('q')} change=${set('q')} /></label>
    <${Choice} label="Success" value=${at('success')} change=${set('success')} options=${[['true', 'solved'], ['false', 'not solved']]} />
    <${Choice} label="Outcome" value=${at('outcome')} change=${set('outcome')} options=${named(['measured', 'failed'])} />
    <${Choice} label="End" value=${at('end')} change=${set('end')} options=${named(page?.ends)} />
    ${(page?.agents ?? []).length > 1 && html`<${Choice} label="Agent" value=${at('agent')} change=${set('agent')}
      options=${named(page.agents)} />`}
    <${Range} label="Reward" name="reward" step="any" query=${query} change=${change} />
    <${Range} label="Tool calls" name="tool_calls" step="1" query=${query} change=${change} />
    <label>Task<${Field} type="number" min="0" label="Task" value=${at('task')} change=${set('task')} /></label>
    <label>Repeat<${Field} type="number" min="0" label="Repeat" value=${at('repeat')} change=${set('repeat')} /></label>
    ${any && html`<button onClick=${clear}>Clear</button>`}
  </div>`;
}
