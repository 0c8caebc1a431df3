/** Two rollouts side by side: aligned turns, the differences in their words, boards in step. */
import { html, useEffect, useMemo, useRef, useState } from '../vendor/htm-preact.js';
import { useData } from '../data.js';
import { useKeys } from '../keys.js';
import { usePlayback } from '../playback.js';
import { Notice, Breadcrumbs } from '../parts/notice.js';
import { Outcome } from '../parts/rollout/outcome.js';
import { align, divergences, divergenceText, samePrompt, turnsOf } from '../parts/sidebyside/alignment.js';
import { ChooseAny } from '../parts/sidebyside/choose.js';
import { ComparedMessage, ComparedTurns } from '../parts/sidebyside/comparedturns.js';
import { PairOfBoards } from '../parts/sidebyside/pairofboards.js';
import { go, link } from '../route.js';
import { runOf } from '../runs.js';
import { Name } from '../text.js';
import { count, plain, seconds } from '../formatting.js';

/** @param {{route: import('../route.js').Route, overview: any}} props */
export function SideBySide({ route, overview }) {
  const keys = [route.path.slice(1, 4), route.path.slice(4, 7)];
  const responses = keys.map(([run, task, repeat]) => useData(`runs/${run}/rollouts/${task}/${repeat}`));
  const up = link(['runs', keys[0][0]], { task: keys[0][1] });
  useKeys({ u: () => go(up) });
  const both = responses.every(({ value, stale }) => value && !stale);
  return html`
    <${Breadcrumbs} name="Two rollouts" title="Two rollouts side by side" steps=${[['Overview', link([])], [`Task ${keys[0][1]}`, up]]} />
    <${ChooseAny} key=${keys.join()} overview=${overview} keys=${keys} />
    ${responses.map(({ error }) => error && html`<${Notice} error=${error} />`)}
    ${!both && responses.every(({ error }) => !error) && html`<${Notice} busy="Reading …" />`}
    ${both && html`<${Both} key=${keys.join()} rollouts=${responses.map(({ value }) => value)} overview=${overview} />`}`;
}

function Both({ rollouts, overview }) {
  const found = useMemo(() => {
    const [left, right] = rollouts.map((rollout) => turnsOf(rollout.events));
    const rows = align(left.turns, right.turns);
    return { left, right, rows, prompt: samePrompt(left.prompt, right.prompt), places: divergences(rows) };
  }, rollouts);
  const { rows, places, prompt } = found;
  const player = usePlayback(rows.length + 1); // position 0 is the start, position i the state after row i - 1
  const [at, setAt] = useState(-1); // which of the differences was visited last
  const root = useRef(null);
  const show = (row) => player.go(row + 1);
  useEffect(() => {
    if (places.length) show(places[0]);
  }, []);
  const visit = (index) => {
    if (index < 0 || index >= places.length) return;
    setAt(index);
    show(places[index]);
    requestAnimationFrame(() => {
      const row = root.current?.querySelector(`[data-row="${places[index]}"]`);
      row?.focus({ preventScroll: true });
      row?.scrollIntoView({ block: 'start' });
    });
  };
  const hasBoards = rollouts.some((rollout) => rollout.replay?.frames.length > 0);
  useKeys({ n: () => visit(at + 1), p: () => visit(Math.max(0, at - 1)), ...(hasBoards ? player.keys : {}) });
  return html`<div class="side-by-side" ref=${root}>
    <${Facts} rollouts=${rollouts} overview=${overview} />
    <p class="divergence" role="status">${divergenceText(prompt, rows)}</p>
    <div class="together differences row">
      <button onClick=${() => visit(Math.max(0, at - 1))} disabled=${at <= 0} title="Previous difference (p)">Previous</button>
      <button onClick=${() => visit(at + 1)} disabled=${at + 1 >= places.length} title="Next difference (n)">Next</button>
      <span class="small soft number">${places.length === 0 ? 'No turn differs in calls or results' : at < 0 ? `${count(places.length)} of ${count(rows.length)} turns differ` : `Difference ${at + 1} of ${places.length}`}</span>
    </div>
    ${hasBoards && html`<${PairOfBoards} rollouts=${rollouts} rows=${rows} player=${player} />`}
    <${Prompts} left=${found.left.prompt} right=${found.right.prompt} same=${prompt} />
    <${ComparedTurns} rows=${rows} current=${player.at - 1} show=${show} />
  </div>`;
}

/** The outcome and the size of both rollouts. */
function Facts({ rollouts, overview }) {
  return html`<div class="table" tabindex="0" role="region" aria-label="Outcomes"><table>
    <thead><tr><th scope="col" class="words">rollout</th><th scope="col" class="words">outcome</th>
      ${['reward', 'turns', 'calls', 'tokens', 'time'].map((name) => html`<th scope="col">${name}</th>`)}<th scope="col" class="words">end</th></tr></thead>
    <tbody>${rollouts.map(({ run, line }) => html`<tr>
      <th scope="row" class="words"><a href=${link(['runs', run, 'tasks', line.task, line.repeat])}><${Name} value=${runOf(overview, run).name} />, task ${line.task}, repeat ${line.repeat}</a></th>
      <td class="words"><${Outcome} line=${line} /></td><td>${plain(line.reward)}</td><td>${count(line.turns)}</td><td>${count(line.tool_calls)}</td>
      <td>${count(line.output_tokens)}</td><td>${seconds(line.seconds)}</td><td class="words"><${Name} value=${line.end} /></td>
    </tr>`)}</tbody></table></div>`;
}

function Prompts({ left, right, same }) {
  const [open, setOpen] = useState(false);
  return html`<details class="same" open=${open} onToggle=${(event) => setOpen(event.currentTarget.open)}>
    <summary class="small soft">${same ? 'The prompt, which is the same' : 'The prompts, which differ'}</summary>
    ${open && (same
      ? html`<div class="side">${left.map((event) => html`<${ComparedMessage} event=${event} />`)}</div>`
      : html`<div class="two">
          <div class="side first">${left.map((event, i) => html`<${ComparedMessage} event=${event} other=${right[i] ?? null} side="first" />`)}</div>
          <div class="side second">${right.map((event, i) => html`<${ComparedMessage} event=${event} other=${left[i] ?? null} side="second" />`)}</div>
        </div>`)}
  </details>`;
}
