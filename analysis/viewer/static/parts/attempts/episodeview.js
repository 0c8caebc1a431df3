/** A conversation with its board: of a failed attempt, or of an episode that is being played. */
import { html, useCallback, useMemo, useRef } from '../../vendor/htm-preact.js';
import { useKeys } from '../../keys.js';
import { usePlayback } from '../../playback.js';
import { useSetting } from '../../settings.js';
import { BoardPlayer } from '../rollout/boardplayer.js';
import { Conversation } from '../rollout/conversation.js';
import { Rewards, stepsOf } from '../rollout/rewards.js';

/** `alone`: nothing else on the page reacts to the keys of a rollout. @param {{events: any[], replay: any, label: string, alone: boolean}} props */
export function EpisodeView({ events, replay, label, alone }) {
  const steps = useMemo(() => stepsOf({ events, replay }), [events, replay]);
  const player = usePlayback(steps.length);
  const conversation = useRef(null);
  const [swapped, setSwapped] = useSetting('swapped', false);
  const reading = useMemo(() => ({ swapped, probabilities: false, find: '' }), [swapped]);
  const show = useCallback((call) => {
    const found = steps.findLastIndex((step) => step.event === call);
    if (found >= 0) player.go(found);
  }, [steps]);
  const showStep = (step) => {
    player.go(step);
    conversation.current.querySelector(`[data-call="${Number(steps[step].event ?? NaN)}"]`)?.scrollIntoView({ block: 'nearest' });
  };
  useKeys(alone ? { m: () => setSwapped(!swapped), ...(steps.length > 0 ? player.keys : {}) } : {});
  const hasAside = replay || steps.length > 0;
  return html`<div class=${hasAside ? 'beside' : ''}>
    ${hasAside && html`<aside class="stage" aria-label="Board and rewards">
      ${replay && html`<${BoardPlayer} replay=${replay} player=${player} />`}
      ${steps.length > 1 && html`<${Rewards} steps=${steps} at=${player.at} pick=${showStep} />`}
    </aside>`}
    <section class="conversation" aria-label=${label} ref=${conversation}>
      <div class="reading row"><button aria-pressed=${swapped} title="What is rendered as Markdown; the rest is plain text (m)" onClick=${() => setSwapped(!swapped)}>Rendered: ${swapped ? 'prompts' : 'answers'}</button></div>
      <${Conversation} events=${events} current=${steps[player.at]?.event ?? null} show=${steps.length > 0 ? show : null}
        reading=${reading} wanted=${-1} />
    </section>
  </div>`;
}
