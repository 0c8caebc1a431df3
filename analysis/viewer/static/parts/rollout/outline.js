/** The outline of an episode: a button for each turn, which goes to it. */
import { html, useEffect, useMemo, useState } from '../../vendor/htm-preact.js';
import { signed } from '../../formatting.js';
import { Name } from '../../text.js';
import { countedNames, outlineOf } from './episodeoutline.js';

const MIN_TURNS = 3;
const MAX_ENTRIES = 1000;
/** The part of the window above which the current turn begins. */
const READING_LINE = 0.35;

/** @param {{events: any[], conversation: any, go: (index: number) => void}} props `conversation` is a ref */
export function Outline({ events, conversation, go }) {
  const entries = useMemo(() => outlineOf(events), [events]);
  const current = useCurrentEvent(conversation);
  const isWide = useMemo(() => matchMedia('(min-width: 80rem)').matches, []);
  if (entries.length <= MIN_TURNS) return null;
  const here = entries.findLastIndex((entry) => entry.index <= current);
  return html`<details class="outline" open=${isWide}><summary class="small soft">Outline (J K)</summary>
    <nav aria-label="Outline"><ol>${entries.slice(0, MAX_ENTRIES).map((entry, i) => html`<li key=${entry.index}>
      <button class="quiet" aria-current=${i === here ? 'step' : undefined} onClick=${() => go(entry.index)}>
        <span class="number turn">${entry.turn || 'Prompt'}</span>
        <span class="what"><${Name} value=${entry.calls.length ? countedNames(entry.calls) : entry.words} /></span>
        ${entry.reward !== null && html`<span class=${`number ${entry.reward < 0 ? 'soft' : 'good'}`}>${signed(entry.reward)}</span>`}
      </button></li>`)}</ol></nav>
  </details>`;
}

/** The index of the event at the reading line. */
function useCurrentEvent(conversation) {
  const [current, setCurrent] = useState(0);
  useEffect(() => {
    let frame = 0;
    const update = () => {
      frame = 0;
      const all = [...(conversation.current?.querySelectorAll('article') ?? [])];
      const at = all.findLastIndex((one) => one.getBoundingClientRect().top < innerHeight * READING_LINE);
      setCurrent(Number(all[Math.max(0, at)]?.dataset.index ?? 0));
    };
    const onScroll = () => {
      frame ||= requestAnimationFrame(update);
    };
    addEventListener('scroll', onScroll, { passive: true });
    return () => {
      removeEventListener('scroll', onScroll);
      cancelAnimationFrame(frame);
    };
  }, []);
  return current;
}
