/** The tools above the list: expression, columns, values of a field, views. They need a server. */
import { html } from '../../vendor/htm-preact.js';
import { formatColumns, joined, parseColumns } from '../../columns.js';
import { useData } from '../../data.js';
import { go, link } from '../../route.js';
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
  return html`<div class="filters listtools">
    <${ExpressionField} run=${run.run} value=${where} keys=${names} inputRef=${expression} change=${(text) => change({ where: text })} />
    <div class="field"><label for="values-of">Values of</label><select id="values-of" onChange=${(event) => change({ facet: event.target.value })}>
      <option value="" selected=${!facet}>choose a field</option>
      ${names.map((name) => html`<option key=${name} value=${name} selected=${name === facet}>${escapeInvisible(name)}</option>`)}
    </select></div>
    <${ColumnChooser} names=${parseColumns(query.get('columns'))} keys=${names} change=${(chosen) => change({ columns: formatColumns(chosen) })} />
    <${ViewMenu} query=${query} file=${run.path} open=${(saved) => go(link(['runs', run.run], new URLSearchParams(saved)))} />
  </div>
  ${facet && html`<${FacetPanel} run=${run.run} name=${facet} query=${query} close=${() => change({ facet: null })}
    select=${(condition) => change({ where: joined(where, condition) })} />`}`;
}
