/** Links from a rollout to comparisons with other rollouts of its task. */
import { html, useState } from '../vendor/htm-preact.js';
import { IS_EXPORT, useData } from '../data.js';
import { plain } from '../formatting.js';
import { useKeys } from '../keys.js';
import { go, link } from '../route.js';
import { choices } from '../runs.js';
import { Name, escapeInvisible } from '../text.js';

function outcome({ success, reward }) {
  return success === null ? (reward === null ? 'failed' : `reward ${plain(reward)}`) : success ? 'solved' : 'not solved';
}

export function Counterparts({ run, line }) {
  const { value } = useData(IS_EXPORT ? null : `runs/${run}/rollouts/${line.task}/${line.repeat}/counterparts`);
  const found = value?.counterparts ?? [];
  const href = (one) => sideBySide([run, line.task, line.repeat], [one.run, one.task, one.repeat]);
  useKeys({ s: () => (found.length > 0 ? go(href(found[0])) : false) });
  return found.length > 0 && html`<nav class="row small counterparts" aria-label="Side by side with">
    <span class="soft" title="s compares with the first">Side by side with</span>
    ${found.map((one) => html`<a class="button" href=${href(one)}>${one.kind === 'other file'
      ? html`<${Name} value=${one.name} />`
      : `${one.kind} (${one.repeat})`}<span class="soft">${' '}${outcome(one)}</span></a>`)}
  </nav>`;
}

/** The address of two rollouts, each given as [run, task, repeat]. */
export function sideBySide(first, second) {
  return link(['side-by-side', ...first, ...second]);
}

/** Any two rollouts of the opened files. @param {{overview: any, keys: string[][]}} props  `keys`: run, task and repeat of both */
export function ChooseAny({ overview, keys }) {
  const [draft, setDraft] = useState(keys);
  const change = (side, place) => (event) => setDraft(draft.map((key, i) => (i === side ? key.map((old, j) => (j === place ? event.target.value : old)) : key)));
  const open = (event) => {
    event.preventDefault();
    if (draft.flat().every((value) => /^\d+$/.test(value))) go(sideBySide(draft[0], draft[1]));
  };
  return html`<details class="folded choose-any"><summary>Choose other rollouts</summary><form onSubmit=${open}>
    ${['First', 'Second'].map((name, side) => html`<fieldset class="row"><legend class="small soft">${name}</legend>
      <select aria-label=${`${name}: file`} onChange=${change(side, 0)}>${choices(overview).map((run) => html`
        <option value=${run.run} selected=${String(run.run) === draft[side][0]}>${escapeInvisible(run.name)}</option>`)}</select>
      <label class="small soft">task <input type="number" min="0" required value=${draft[side][1]} onInput=${change(side, 1)} /></label>
      <label class="small soft">repeat <input type="number" min="0" required value=${draft[side][2]} onInput=${change(side, 2)} /></label>
    </fieldset>`)}
    <button>Show</button>
  </form></details>`;
}
