/** Choices of two rollouts to show side by side. */
import { html, useState } from '../../vendor/htm-preact.js';
import { escapeInvisible } from '../../text.js';
import { go, link } from '../../route.js';
import { choices } from '../../runs.js';

/** The address of two rollouts, each given as [run, task, repeat]. */
export function sideBySide(first, second) {
  return link(['side-by-side', ...first, ...second]);
}

/** The rollouts to compare first: one that is solved and one that is not, if there are both. */
function defaults([first, second]) {
  const isSame = first === second;
  const solved = (rollouts, wanted) => rollouts.findIndex((rollout) => rollout.line.success === wanted);
  if (!isSame) {
    const better = [solved(first, false), solved(second, true)];
    const worse = [solved(first, true), solved(second, false)];
    const found = [better, worse].find((pair) => pair.every((at) => at >= 0));
    return found ?? [0, 0];
  }
  const found = [solved(first, true), solved(first, false)];
  return found.every((at) => at >= 0) ? found : [0, Math.min(1, first.length - 1)];
}

/** Two of the shown rollouts. @param {{sides: [any[], any[]]}} props  `sides`: the rollouts to choose from, twice the same for one task */
export function ChooseTwo({ sides }) {
  const [chosen, setChosen] = useState(null);
  if (!sides[0].length || !sides[1].length || (sides[0] === sides[1] && sides[0].length < 2)) return null;
  const at = chosen ?? defaults(sides);
  const [first, second] = at.map((index, side) => sides[side][index] ?? sides[side][0]);
  const pick = (side) => (event) => setChosen(at.map((index, i) => (i === side ? Number(event.target.value) : index)));
  const label = (rollout) => `repeat ${rollout.line.repeat}${rollout.line.outcome === 'failed' ? ', failed' : rollout.line.success === null ? '' : rollout.line.success ? ', solved' : ', not solved'}`;
  const key = ({ run, line }) => [run, line.task, line.repeat];
  return html`<div class="row small choose-two" role="group" aria-label="Two rollouts side by side">
    <span class="soft">Side by side:</span>
    ${sides.map((rollouts, side) => html`<select aria-label=${side ? 'Second rollout' : 'First rollout'} onChange=${pick(side)}>
      ${rollouts.map((rollout, i) => html`<option value=${i} selected=${i === at[side]}>${label(rollout)}</option>`)}</select>`)}
    <a class="button" href=${sideBySide(key(first), key(second))}>Compare turn by turn</a>
  </div>`;
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
