/** Shows all repeats of a task in one run as cards. */
import { html } from '../../vendor/htm-preact.js';
import { plain, several } from '../../formatting.js';
import { Buttons } from './boardplayer.js';
import { RolloutCard } from '../rolloutcard.js';

/** The longest replay's number of frames. @param {any[]} stories */
export function longest(stories) {
  return Math.max(0, ...stories.map((story) => story.replay?.frames.length ?? 0));
}

/** The controls that move all boards. @param {{player: ReturnType<typeof import('../../playback.js').usePlayback>}} props */
export function PlaybackControls({ player }) {
  const said = `move ${player.at} of ${player.last}`;
  return player.last > 0 && html`<div class="together">
    <${Buttons} player=${player} title="all boards" said=${said} />
    <p class="small soft number">All boards at ${said}; shorter ones stay at their last move</p>
  </div>`;
}

/** @param {{stories: any[], move: number}} props */
export function RepeatCards({ stories, move }) {
  const measured = stories.filter((story) => story.line.reward !== null);
  const solved = measured.filter((story) => story.line.success).length;
  const mean = measured.reduce((sum, story) => sum + story.line.reward, 0) / (measured.length || 1);
  return html`
    <p class="soft small number">${several(stories.length, 'rollout')}
      ${measured.length > 0 && `, ${solved} solved, mean reward ${plain(mean)}`}</p>
    <div class="cards">${stories.map((story) => html`<${RolloutCard} key=${story.line.repeat} story=${story} move=${move} />`)}</div>`;
}
