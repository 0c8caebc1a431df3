/** The rewards by step as a strip of columns; a click goes to the step. */
import { html } from '../../vendor/htm-preact.js';
import { signed, pluralize, plain } from '../../formatting.js';

const HEIGHT = 44;
const WIDTH = 400;

/**
 * The steps of an episode: the moves of its board if it has one, else its tool calls with a reward. `event` is the index
 * of the call that the step belongs to, counted over all calls.
 * @param {any} rollout
 * @returns {{reward: number | null, event: number | null, name: string}[]}
 */
export function stepsOf(rollout) {
  if (rollout.replay) return rollout.replay.frames.map((frame, i) => ({ reward: frame.reward, event: frame.event, name: `move ${i}` }));
  const order = new Map(rollout.events.filter((event) => event.speaker === 'call').map((event, i) => [event.call, i]));
  const results = rollout.events.filter((event) => event.speaker === 'result');
  if (results.every((event) => event.reward === null)) return [];
  return results.map((event, i) => ({ reward: event.reward, event: order.get(event.call) ?? null, name: `call ${i + 1}` }));
}

/** @param {{steps: ReturnType<typeof stepsOf>, at: number, pick: (step: number) => void}} props */
export function Rewards({ steps, at, pick }) {
  const rewards = steps.map((step) => step.reward ?? 0);
  const largest = Math.max(...rewards.map(Math.abs)) || 1;
  const width = WIDTH / steps.length;
  // A step costs 0.1 and a solved board gives 10; square roots keep the small rewards visible.
  const size = (value) => Math.sqrt(Math.abs(value) / largest) * (HEIGHT / 2 - 3);
  const click = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    pick(Math.max(0, Math.min(steps.length - 1, Math.floor(((event.clientX - box.left) / box.width) * steps.length))));
  };
  const total = rewards.reduce((sum, value) => sum + value, 0);
  return html`<section class="strip" aria-label="Rewards by step">
    <h2>Rewards <span class="small soft">
      ${pluralize(steps.length, 'step')}, total ${plain(Number(total.toFixed(6)))}; column heights are square roots</span></h2>
    <svg viewBox="0 0 ${WIDTH} ${HEIGHT}" preserveAspectRatio="none" role="img" onClick=${click}
      aria-label=${`Rewards of ${pluralize(steps.length, 'step')}; now ${steps[at]?.name}: ${signed(steps[at]?.reward)}`}>
      <rect class="now" x=${at * width} width=${width} height=${HEIGHT} />
      <line class="zero" x1="0" x2=${WIDTH} y1=${HEIGHT / 2} y2=${HEIGHT / 2} />
      ${rewards.map((value, i) => html`<rect class=${value < 0 ? 'loss' : 'gain'} x=${i * width + width * 0.1} width=${width * 0.8}
        y=${value < 0 ? HEIGHT / 2 : HEIGHT / 2 - size(value)} height=${Math.max(0.5, size(value))}>
        <title>${`${steps[i].name}: ${signed(value)}`}</title></rect>`)}
    </svg>
  </section>`;
}
