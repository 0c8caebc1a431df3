/** The steps of a training run, the last one first, with links to their rollouts. */
import { html, useState } from '../vendor/htm-preact.js';
import { useData } from '../data.js';
import { Notice } from './notice.js';
import { link } from '../route.js';
import { Name } from '../text.js';
import { count } from '../formatting.js';

const PAGE_LENGTH = 50;

/** `version` changes when there is something new. @param {{version: string}} props */
export function StepTable({ version }) {
  const [start, setStart] = useState(0);
  const { value: page, error } = useData(`training/steps?start=${start}&limit=${PAGE_LENGTH}&version=${version}`);
  if (error) return html`<${Notice} error=${error} />`;
  if (!page) return html`<${Notice} busy="Reading …" />`;
  const end = start + page.lines.length;
  return html`
    <div class="table" tabindex="0" role="region" aria-label="Table of steps"><table>
      <caption class="hidden">Steps, the last one first</caption>
      <thead><tr><th scope="col">step</th><th scope="col" class="words">rollouts</th>
        ${page.columns.map((name) => html`<th scope="col"><${Name} value=${name} /></th>`)}</tr></thead>
      <tbody>${page.lines.map((line) => html`<${Step} key=${line.step} line=${line} />`)}</tbody>
    </table></div>
    ${page.total > PAGE_LENGTH && html`<nav class="paging" aria-label="Pages of the table">
      <button onClick=${() => setStart(Math.max(0, start - PAGE_LENGTH))} disabled=${start === 0}>Later steps</button>
      <span class="number small">${count(start + 1)}–${count(end)} of ${count(page.total)}</span>
      <button onClick=${() => setStart(start + PAGE_LENGTH)} disabled=${end >= page.total}>Earlier steps</button>
    </nav>`}`;
}

function Step({ line }) {
  const to = (run, text, label) => html`<a href=${link(['runs', run])} aria-label=${`${label} of step ${line.step}`}>${text}</a>`;
  return html`<tr>
    <th scope="row">${line.rollouts === null ? line.step : to(line.rollouts, line.step, 'Rollouts')}</th>
    <td class="words">${line.rollouts !== null && to(line.rollouts, 'training', 'Training rollouts')}
      ${line.rollouts !== null && line.evaluation !== null && ', '}
      ${line.evaluation !== null && to(line.evaluation, 'evaluation', 'Evaluation')}</td>
    ${line.cells.map((cell) => html`<td>${cell || '–'}</td>`)}
  </tr>`;
}
