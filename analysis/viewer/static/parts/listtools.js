/** The tools above the list: expression, columns, values of a field, views. They need a server. */
import { html, useEffect, useRef, useState } from '../vendor/htm-preact.js';
import { barCondition, completions, DEFAULT_COLUMNS, formatColumns, joined, parseColumns, valueText } from '../columns.js';
import { useData } from '../data.js';
import { count, percent, plain, pluralize } from '../formatting.js';
import { Notice } from './page.js';
import { changed, go, link } from '../route.js';
import { savedViews, saveView, viewOf } from '../storage.js';
import { escapeInvisible, Name } from '../text.js';

export function ListTools({ run, query, change, expression }) {
  const { value: keys } = useData(`runs/${run.run}/keys`);
  const names = keys ? [...keys.computed, ...keys.keys.map((key) => key.path)] : [];
  const where = query.get('where') ?? '';
  const facet = query.get('facet') ?? '';
  return html`<div class="filters listtools">
    <${ExpressionField} run=${run.run} value=${where} keys=${names} inputRef=${expression} change=${(text) => change({ where: text })} />
    <div class="field"><label for="values-of">Values of</label><select id="values-of" onChange=${(event) => change({ facet: event.target.value })}>
      <option value="" selected=${!facet}>choose a field</option>
      ${names.map((name) => html`<option key=${name} value=${name} selected=${name === facet}>${escapeInvisible(name)}</option>`)}
    </select></div>
    <${ColumnChooser} names=${parseColumns(query.get('columns'))} keys=${names} change=${(chosen) => change({ columns: formatColumns(chosen) })} />
    <${ViewMenu} query=${query} open=${(saved) => go(link(['runs', run.run], new URLSearchParams(saved)))} />
  </div>
  ${facet && html`<${FacetPanel} run=${run.run} name=${facet} query=${query} close=${() => change({ facet: null })}
    select=${(condition) => change({ where: joined(where, condition) })} />`}`;
}

const CHECK_AFTER_MS = 200;

function ExpressionField({ run, value, keys, inputRef, change }) {
  const [draft, setDraft] = useState(value);
  const [checked, setChecked] = useState(value);
  const cancelled = useRef(false);
  useEffect(() => setDraft(value), [value]);
  useEffect(() => {
    const timer = setTimeout(() => setChecked(draft), CHECK_AFTER_MS);
    return () => clearTimeout(timer);
  }, [draft]);
  const text = checked.trim();
  const { value: check } = useData(text ? `runs/${run}/expression?${new URLSearchParams({ text })}` : null);
  const found = text && draft.trim() === text ? check : null;
  const apply = (event) => {
    if (cancelled.current) return;
    const typed = event.target.value.trim(); // the draft may not be rendered yet
    if (typed !== value) change(typed);
  };
  return html`<div class="expression">
    <label>Expression<input type="text" ref=${inputRef} list="expression-keys" autocomplete="off" spellcheck="false" autocapitalize="off"
      placeholder="reward < 0.5 and tool_calls > 3  ( e )" value=${draft} aria-invalid=${found?.error ? 'true' : undefined}
      aria-describedby="expression-check" onInput=${(event) => setDraft(event.target.value)} onBlur=${apply}
      onKeyDown=${(event) => {
        if (event.key === 'Enter') apply(event);
        if (event.key === 'Escape') {
          setDraft(value);
          cancelled.current = true;
          event.target.blur();
          cancelled.current = false;
        }
      }} /></label>
    <datalist id="expression-keys">${completions(draft, keys).map((one) => html`<option key=${one} value=${one}></option>`)}</datalist>
    <p id="expression-check" class=${`small ${found?.error ? 'bad' : 'soft'}`} aria-live="polite">${found ? found.error || found.hint : ''}</p>
  </div>`;
}

const POLL_MS = 400;

function FacetPanel({ run, name, query, select, close }) {
  const request = changed(query, { facet: null, start: null, sort: null, columns: null, key: name });
  const { value: facet, error } = useData(`runs/${run}/facet?${request}`, (loaded) => (loaded && loaded.searched < 1 ? POLL_MS : 0));
  const most = Math.max(1, ...(facet?.values ?? []).map((one) => one.rollouts), ...(facet?.histogram ?? []).map((bar) => bar.rollouts));
  const bar = (rollouts) => html`<meter min="0" max=${most} value=${rollouts} aria-hidden="true"></meter>`;
  const isNumber = facet && facet.low !== null;
  return html`<section class="facet" aria-label=${`Values of ${name}`}>
    <div class="row"><h2>Values of <${Name} value=${name} /></h2><button class="quiet" onClick=${close}>Close</button></div>
    ${error && html`<${Notice} error=${error} />`}
    ${facet && html`<p class="small soft" aria-live="polite">${pluralize(facet.distinct, 'distinct value')} in ${pluralize(facet.rollouts, 'measured rollout')},
      ${' '}${count(facet.missing)} without one${isNumber ? `; from ${plain(facet.low)} to ${plain(facet.high)}, median ${plain(facet.median)}` : ''}
      ${facet.searched < 1 ? ` so far; read ${percent(facet.searched, 0)} of the file` : ''}</p>
    <table><caption class="hidden">Values and numbers of rollouts</caption><tbody>
      ${facet.values.map((one) => html`<tr><th scope="row" class="words">${one.where
        ? html`<button class="quiet" onClick=${() => select(one.where)}><${Name} value=${valueText(one.value)} /></button>`
        : html`<${Name} value=${valueText(one.value)} />`}</th><td>${count(one.rollouts)}</td><td>${bar(one.rollouts)}</td></tr>`)}
      ${facet.values.length === 0 && facet.histogram.map((one, at) => html`<tr><th scope="row" class="words"><button class="quiet"
        onClick=${() => select(barCondition(name, one, at === facet.histogram.length - 1))}>${plain(one.low)}${one.high > one.low && ` to ${plain(one.high)}`}</button></th>
        <td>${count(one.rollouts)}</td><td>${bar(one.rollouts)}</td></tr>`)}
    </tbody></table>
    ${facet.values.length > 0 && facet.distinct > facet.values.length && html`<p class="small soft">The ${facet.values.length} most frequent values.</p>`}`}
  </section>`;
}

const NAMES = new Map(Object.entries({ success: 'outcome', tool_calls: 'calls', output_tokens: 'tokens', seconds: 'time', '(prompt)': 'prompt', '(verdict)': 'verdict: expected, extracted, reason, tests, parts of the reward, limits' }));
const MAX_SHOWN = 60;

/** Keys are untrusted: a row may have one that is called `constructor`. */
const nameOf = (key) => NAMES.get(key) ?? key;

function ColumnChooser({ names, keys, change }) {
  const [text, setText] = useState('');
  const all = [...new Set([...DEFAULT_COLUMNS, ...names, ...keys])].filter((key) => key !== 'task');
  const found = all.filter((key) => nameOf(key).toLowerCase().includes(text.toLowerCase()));
  const toggle = (key) => change(names.includes(key) ? names.filter((one) => one !== key) : [...names, key]);
  return html`<details class="chooser">
    <summary class="button">Columns</summary>
    <div class="choices">
      <input type="search" aria-label="Find a column" placeholder="find a column" value=${text} onInput=${(event) => setText(event.target.value)} />
      <ul>${found.slice(0, MAX_SHOWN).map((key) => html`<li key=${key}><label class="check"><input type="checkbox" checked=${names.includes(key)}
        disabled=${names.length === 1 && names.includes(key)} onChange=${() => toggle(key)} />${escapeInvisible(nameOf(key))}</label></li>`)}</ul>
      ${found.length > MAX_SHOWN && html`<p class="small soft">${found.length - MAX_SHOWN} more; type a part of the name.</p>`}
      <button onClick=${() => change([])}>Default columns</button>
    </div>
  </details>`;
}

function ViewMenu({ query, open }) {
  const [name, setName] = useState('');
  const [note, setNote] = useState('');
  const summary = useRef(null);
  const views = savedViews();
  const now = viewOf(query);
  const current = views.find(([, saved]) => saved === now)?.[0] ?? '';
  const wanted = name.trim();
  const store = (view, saved, text) => setNote(saveView(view, saved) ? text : 'The browser does not allow this page to store views.');
  const save = () => {
    if (wanted) store(wanted, now, `Saved as ${wanted}.`);
    setName('');
  };
  const remove = (view) => {
    store(view, null, `Deleted ${view}.`);
    summary.current.focus(); // the button is gone
  };
  return html`<details class="chooser">
    <summary class="button" ref=${summary}>${current ? html`View: ${escapeInvisible(current)}` : 'Views'}</summary>
    <div class="choices">
      ${views.length > 0 && html`<ul>${views.map(([one, saved]) => html`<li key=${one} class="row">
        <button class="quiet" aria-pressed=${one === current ? 'true' : 'false'} onClick=${() => open(saved)}>${escapeInvisible(one)}</button>
        <button class="quiet" aria-label=${`Delete the view ${escapeInvisible(one)}`} onClick=${() => remove(one)}>Delete</button>
      </li>`)}</ul>`}
      <div class="row"><input type="text" aria-label="Name of the view" placeholder="name" maxlength="80" value=${name}
        onInput=${(event) => setName(event.target.value)} onKeyDown=${(event) => event.key === 'Enter' && save()} />
        <button onClick=${save} disabled=${!wanted}>Save this view</button></div>
      <p class="small soft" aria-live="polite">${note || 'A view is also in the address: copy it to share it.'}</p>
    </div>
  </details>`;
}

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

const Choice = ({ label, value, change, options }) => html`<label>${label}<select onChange=${(event) => change(event.target.value)}>
  <option value="" selected=${!value}>any</option>
  ${options.map(([key, label]) => html`<option value=${key} selected=${key === value}>${escapeInvisible(label)}</option>`)}
</select></label>`;

function Range({ label, name, query, change, step }) {
  const field = (end, hint) => html`<${Field} type="number" step=${step} label=${`${label}, ${hint}`} placeholder=${hint}
    value=${query.get(`${end}_${name}`) || ''} change=${(value) => change({ [`${end}_${name}`]: value })} />`;
  return html`<fieldset><legend>${label}</legend><div class="pair">${field('min', 'from')}–${field('max', 'to')}</div></fieldset>`;
}

export function Filters({ query, page, search, change }) {
  const current = (name) => query.get(name) || '';
  const set = (name) => (value) => change({ [name]: value });
  const named = (values) => (values ?? []).map((value) => [value, value]);
  const isFiltered = [...query.keys()].some((key) => !NO_FILTERS.includes(key));
  const clear = () => change(Object.fromEntries([...query.keys()].filter((key) => !NO_FILTERS.includes(key)).map((key) => [key, null])));
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
    ${current('finding') && html`<button onClick=${() => change({ finding: null })}>Only the finding ${escapeInvisible(page?.finding?.title ?? current('finding'))} ✕</button>`}
    ${isFiltered && html`<button onClick=${clear}>Clear</button>`}
  </div>`;
}

const NO_FILTERS = ['sort', 'start', 'columns', 'facet'];

export function FilterFold({ query, open, setOpen, children }) {
  const active = [...query.keys()].filter((key) => !NO_FILTERS.includes(key)).length;
  return html`<div class=${`filter-fold ${open ? 'open' : ''}`}>
    <button class="fold-button" aria-expanded=${open ? 'true' : 'false'} aria-controls="list-filters" onClick=${() => setOpen(!open)}>
      Filters and columns${active > 0 && html` <span class="badge">${pluralize(active, 'filter')} active</span>`}
    </button>
    <div id="list-filters" class="fold-content">${children}</div>
  </div>`;
}
