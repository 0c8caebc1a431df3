/** The table of rollouts; a click on a column header sorts. */
import { html } from '../vendor/htm-preact.js';
import { parseColumns, shownColumns, valueText } from '../columns.js';
import { count, exact, plain, seconds } from '../formatting.js';
import { keyOf, labelsOf, overrideOf, verdictText } from './notestore.js';
import { SortableHeader } from './page.js';
import { Outcome } from './verdict.js';
import { changed, go, link } from '../route.js';
import { escapeInvisible, Name } from '../text.js';
import { placeOf } from '../textmatches.js';

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
  ['agent', 'agent', false, (line) => html`<${Name} value=${line.agent} />`],
];
const BY_KEY = new Map(COLUMNS.map((column) => [column[1], column]));
const KNOWN = new Set(['task', ...BY_KEY.keys()]);
const LEFT_ALIGNED = new Set(['success', 'end', 'agent']);

/** A value of the row; long ones end in an ellipsis, and the complete value is on the rollout's page. */
function Cell({ head, value }) {
  if (typeof value === 'number') return html`<td>${head.role === 'expected' || head.role === 'extracted' ? exact(value) : plain(value)}</td>`;
  const text = valueText(value).replace(/\s+/g, ' ').trim();
  return html`<td class=${`text-cell ${head.role ?? ''}`} title=${escapeInvisible(text)}>${value === null && head.role === 'extracted'
    ? html`<span class="soft">none</span>` : html`<${Name} value=${text} />`}</td>`;
}

/** Whether all values of a column are numbers, which are aligned at the right, as its header then is. */
function hasNumbers(cells, at) {
  const values = cells.map((line) => line[at] ?? null).filter((value) => value !== null);
  return values.length > 0 && values.every((value) => typeof value === 'number');
}

export function RolloutTable({ run, page, query, notes }) {
  const emptyText = page.searched < 1 ? 'No matches yet.' : 'No rollout matches these filters.';
  if (!page.lines.length) return html`<p class="message">${emptyText}</p>`;
  const names = parseColumns(query.get('columns'));
  const withAgents = page.agents.length > 1 && !query.get('columns');
  const shown = [...shownColumns(names, page.columns ?? [], KNOWN), ...(withAgents ? [{ name: 'agent' }] : [])].filter((one) => one.name !== 'task');
  const now = query.get('sort') || '';
  const head = (name, sort, descending, leftAligned) => html`<${SortableHeader} name=${name} sort=${sort} now=${now} descending=${descending}
    leftAligned=${leftAligned} path=${['runs', run]} query=${query} />`;
  const ownHead = (own) => (own.path === '(prompt)'
    ? html`<th scope="col" class="words">prompt</th>`
    : head(own.label, own.path, false, !hasNumbers(page.cells, own.at)));
  return html`<div class="table"><table class="wide">
    <caption class="hidden">Rollouts; column headers sort</caption>
    <thead><tr>
      ${head('task', 'task', false, true)}
      ${notes?.size > 0 && html`<th scope="col" class="words">notes</th>`}
      ${shown.map(({ name, head: own }) => (own ? ownHead(own) : head(BY_KEY.get(name)[0], name, BY_KEY.get(name)[2], LEFT_ALIGNED.has(name))))}
    </tr></thead>
    <tbody>${page.lines.map((line, i) => {
      const [path, at] = [['runs', run, 'tasks', line.task, line.repeat], changed(query, { start: null, at: page.start + i })];
      const href = link(path, at);
      return html`<tr class="link" key=${`${line.task}/${line.repeat}`} onClick=${(event) => open(event, href)}>
        <th scope="row"><a href=${href} aria-label=${`Task ${line.task}, repeat ${line.repeat}`}>${line.task}</a></th>
        ${notes?.size > 0 && html`<td class="marked"><${NoteMarks} notes=${notes.get(keyOf(line))} /></td>`}
        ${shown.map(({ name, head: own }) => (own
          ? html`<${Cell} head=${own} value=${page.cells[i]?.[own.at] ?? null} />`
          : html`<td class=${LEFT_ALIGNED.has(name) ? 'words' : ''}>${BY_KEY.get(name)[3](line)}</td>`))}
      </tr>
      ${page.snippets?.[i] && html`<${SnippetRow} snippet=${page.snippets[i]} href=${(changes) => link(path, changed(at, changes))} span=${shown.length + 1 + Number(notes?.size > 0)} />`}`;
    })}</tbody>
  </table></div>`;
}

function open(event, href) {
  if (event.target.closest('a') || String(getSelection())) return;
  if (event.ctrlKey || event.metaKey) globalThis.open(href);
  else go(href);
}

function NoteMarks({ notes }) {
  if (!notes) return null;
  const override = overrideOf(notes);
  const texts = notes.texts.map((one) => escapeInvisible(`${one.author}: ${one.text}`)).join('\n');
  return html`<span class="marks">
    ${override && html`<span class=${`mark verdictmark ${override.verdict === 'wrong' ? 'bad' : override.verdict === 'correct' ? 'good' : ''}`}
      title=${escapeInvisible(`${override.author}: ${verdictText(override.verdict)} ${override.reason}`)}>${verdictText(override.verdict)}</span>`}
    ${labelsOf(notes).map(({ label, authors }) => html`<span class="mark" title=${escapeInvisible(authors.join(', '))}><${Name} value=${label} /></span>`)}
    ${notes.texts.length > 0 && html`<span class="mark soft" title=${texts}>${notes.texts.length === 1 ? 'note' : `${notes.texts.length} notes`}</span>`}
  </span>`;
}

function SnippetRow({ snippet, span, href }) {
  const { event, before, match, after } = snippet;
  return html`<tr class="snippet"><td colspan=${span}><div>
    <a href=${href({ match: event })}>${escapeInvisible(placeOf(snippet))}</a>
    ${' '}<${Name} value=${before} /><mark><${Name} value=${match} /></mark><${Name} value=${after} />
  </div></td></tr>`;
}
