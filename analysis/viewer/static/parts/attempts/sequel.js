/** What became of an episode that has ended: the finished rollout, a failed attempt, or the next attempt. */
import { html } from '../../vendor/htm-preact.js';
import { useData } from '../../data.js';
import { link } from '../../route.js';
import { Name } from '../../text.js';
import { attemptLink, runOfOutput } from './attemptlink.js';

const POLL_MS = 1000;

/** @param {{tail: any, overview: any}} props */
export function Sequel({ tail, overview }) {
  const { value: live } = useData('live', () => POLL_MS);
  const outputs = (live?.collections ?? []).map((one) => one.output);
  const runs = outputs.map((output) => runOfOutput(overview, output)).filter(Boolean);
  const again = live?.episodes.find((one) => one.task === tail.task && one.repeat === tail.repeat && one.episode !== tail.episode);
  return html`
    ${again && html`<p><a class="button" href=${link(['live', again.agent, again.episode], { task: again.task, repeat: again.repeat })}>Follow the next attempt</a></p>`}
    ${runs.map((run) => html`<${Finished} key=${run.run} run=${run} alone=${runs.length === 1} tail=${tail} />`)}
    ${live && runs.length === 0 && outputs.length > 0 && html`<p class="soft small">
      Its rollouts are not open here. Show them with <code><${Name} value=${`ng_viewer ${outputs[0]}`} /></code></p>`}`;
}

/** Asks until the rollout is in the file, and for its failed attempts. */
function Finished({ run: { run, name }, alone, tail }) {
  const { task, repeat } = tail;
  // An episode does not tell which of several collections it belongs to.
  const where = alone ? '' : html` in <${Name} value=${name} />`;
  const rollouts = useData(`runs/${run}/sequel/${task}/${repeat}`, (found) => (found?.measured ? 0 : POLL_MS));
  const found = rollouts.value;
  if (!found) return null;
  return html`<p class="row" role="status">
    ${found.measured && html`<a class="button" href=${link(['runs', run, 'tasks', task, repeat])}>The finished rollout${where}</a>`}
    ${found.attempts > 0 && html`<a class="button" href=${attemptLink(run, { task, repeat, at: found.attempts - 1 })}>The failed attempt${where}</a>`}
    ${!found.measured && !found.attempts && html`<span class="soft small">Waiting for the rollout to be recorded …</span>`}
  </p>`;
}
