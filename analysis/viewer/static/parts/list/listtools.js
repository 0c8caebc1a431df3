/** The tools above the list: expression, columns, values of a field, groups, views. They need a server. */
import { html } from '../../vendor/htm-preact.js';
import { formatColumns, joined, parseColumns } from '../../columns.js';
import { useData } from '../../data.js';
import { changed, go, link } from '../../route.js';
import { escapeInvisible } from '../../text.js';
import { ColumnChooser } from './columnchooser.js';
import { ExpressionField } from './expressionfield.js';
import { FacetPanel } from './facetpanel.js';
import { ViewMenu } from './viewmenu.js';

/** Fields that are also columns of every line or keys of the rows. @param {any} keys @returns {string[]} */
export function fieldNames(keys) {
  return keys ? [...keys.computed, ...keys.keys.map((key) => key.path)] : [];
}

/** @param {{run: any, query: URLSearchParams, change: (changes: Record<string, string | null>) => void, expression: any}} props */
export function ListTools({ run, query, change, expression }) {
  const { value: keys } = useData(`runs/${run.run}/keys`);
  const names = fieldNames(keys);
  const where = query.get('where') ?? '';
  const facet = query.get('facet') ?? '';
  const group = (by) => by && go(link(['runs', run.run, 'groups'], changed(query, { by, start: null, sort: null, columns: null, facet: null })));
  const choice = (label, id, value, pick) => html`<div class="field"><label for=${id}>${label}</label><select id=${id} onChange=${(event) => pick(event.target.value)}>
    <option value="" selected=${!value}>choose a field</option>
    ${names.map((name) => html`<option key=${name} value=${name} selected=${name === value}>${escapeInvisible(name)}</option>`)}
  </select></div>`;
  return html`<div class="filters listtools">
    <${ExpressionField} run=${run.run} value=${where} keys=${names} inputRef=${expression} change=${(text) => change({ where: text })} />
    ${choice('Values of', 'values-of', facet, (name) => change({ facet: name }))}
    ${choice('Group by', 'group-by', '', group)}
    <${ColumnChooser} names=${parseColumns(query.get('columns'))} keys=${names} change=${(chosen) => change({ columns: formatColumns(chosen) })} />
    <${ViewMenu} query=${query} file=${run.path} open=${(saved) => go(link(['runs', run.run], new URLSearchParams(saved)))} />
  </div>
  ${facet && html`<${FacetPanel} run=${run.run} name=${facet} query=${query} close=${() => change({ facet: null })}
    select=${(condition) => change({ where: joined(where, condition) })} />`}`;
}
