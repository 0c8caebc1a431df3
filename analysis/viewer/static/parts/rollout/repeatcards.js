/** Shows all repeats of a task in one run as cards. */
import { html } from '../../vendor/htm-preact.js';
import { plain, pluralize } from '../../formatting.js';
import { Buttons } from './boardplayer.js';
import { RolloutCard } from '../rolloutcard.js';

/** The longest replay's number of frames. @param {any[]} rollouts */
export function longest(rollouts) {
  return Math.max(0, ...rollouts.map((rollout) => rollout.replay?.frames.length ?? 0));
}

/** The controls that move all boards. @param {{player: ReturnType<typeof import('../../playback.js').usePlayback>}} props */
export function PlaybackControls({ player }) {
  const position = `move ${player.at} of ${player.last}`;
  return player.last > 0 && html`<div class="together">
    <${Buttons} player=${player} title="all boards" position=${position} />
    <p class="small soft number">All boards at ${position}; shorter ones stay at their last move</p>
  </div>`;
}

/** @param {{rollouts: any[], move: number}} props */
export function RepeatCards({ rollouts, move }) {
  const measured = rollouts.filter((rollout) => rollout.line.reward !== null);
  const solved = measured.filter((rollout) => rollout.line.success).length;
  const mean = measured.reduce((sum, rollout) => sum + rollout.line.reward, 0) / (measured.length || 1);
  return html`
    <p class="soft small number">${pluralize(rollouts.length, 'rollout')}
      ${measured.length > 0 && `, ${solved} solved, mean reward ${plain(mean)}`}</p>
    <div class="cards">${rollouts.map((rollout) => html`<${RolloutCard} key=${rollout.line.repeat} rollout=${rollout} move=${move} />`)}</div>`;
}
