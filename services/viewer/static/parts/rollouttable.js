/** The table of rollouts; a click on a column header sorts. */
import { html } from '../vendor/htm-preact.js';
import { changed, go, link } from '../route.js';
import { Name } from '../text.js';
import { count, plain, seconds } from '../formatting.js';
import { Outcome } from './rollout/outcome.js';
import { SortableHeader } from './sortableheader.js';

/** Name, sort key, whether the first click sorts in descending order, cell. @type {[string, string, boolean, (line: any) => any][]} */
const COLUMNS = [
  ['repeat', 'repeat', false, (line) => line.repeat],
  ['outcome', 'success', true, (line) => html`<${Outcome} line=${line} />`],
  ['reward', 'reward', true, (line) => plain(line.reward)],
  ['calls', 'tool_calls', true, (line) => count(line.tool_calls)],
  ['turns', 'turns', true, (line) => count(line.turns)],
  ['tokens', 'output_tokens', true, (line) => count(line.output_tokens)],
  ['time', 'seconds', true, (line) => seconds(line.seconds)],
  ['end', 'end', false, (line) => html`<${Name} value=${line.end} />`],
];
const LEFT_ALIGNED = new Set(['success', 'end']);

/** @param {{run: number, page: any, query: URLSearchParams}} props */
export function RolloutTable({ run, page, query }) {
  const emptyText = page.searched < 1 ? 'No matches yet.' : 'No rollout matches these filters.';
  if (!page.lines.length) return html`<p class="message">${emptyText}</p>`;
  const hasAgents = page.agents.length > 1;
  const now = query.get('sort') || '';
  const head = (name, sort, descending, leftAligned) => html`<${SortableHeader} name=${name} sort=${sort} now=${now} descending=${descending}
    leftAligned=${leftAligned} path=${['runs', run]} query=${query} />`;
  return html`<div class="table"><table class="wide">
    <caption class="hidden">Rollouts; column headers sort</caption>
    <thead><tr>
      ${head('task', 'task', false, true)}
      ${COLUMNS.map(([name, key, descending]) => head(name, key, descending, LEFT_ALIGNED.has(key)))}
      ${hasAgents && html`<th scope="col" class="words">agent</th>`}
    </tr></thead>
    <tbody>${page.lines.map((line, i) => {
      const href = link(['runs', run, 'tasks', line.task, line.repeat], changed(query, { start: null, at: page.start + i }));
      return html`<tr class="link" key=${`${line.task}/${line.repeat}`} onClick=${(event) => open(event, href)}>
        <th scope="row"><a href=${href} aria-label=${`Task ${line.task}, repeat ${line.repeat}`}>${line.task}</a></th>
        ${COLUMNS.map(([, key, , cell]) => html`<td class=${LEFT_ALIGNED.has(key) ? 'words' : ''}>${cell(line)}</td>`)}
        ${hasAgents && html`<td class="words"><${Name} value=${line.agent} /></td>`}
      </tr>`;
    })}</tbody>
  </table></div>`;
}

/** Opens a row when it is clicked, unless text is selected or the click was on a link. */
function open(event, href) {
  if (event.target.closest('a') || String(getSelection())) return;
  if (event.ctrlKey || event.metaKey) globalThis.open(href);
  else go(href);
}
