/** Finds a text in the conversation: marks all matches and jumps between them. */
import { html, useEffect, useLayoutEffect, useRef, useState } from '../vendor/htm-preact.js';
import { count } from '../formatting.js';
import { useKeys } from '../keys.js';
import { matchPositions } from '../textmatches.js';

const DEBOUNCE_MS = 200;
const MAX_MATCHES = 2000;
const BLOCKS = '.text, .name';

/** `conversation` is a ref. Texts that contain `find` must be visible in it, even if they are long. `first` is the index of the event at
 * whose first match the page opens; -1 for none.
 * @param {{conversation: any, find: string, setFind: (text: string) => void, first?: number}} props */
export function FindBar({ conversation, find, setFind, first = -1 }) {
  const field = useRef(null);
  const timer = useRef(0);
  const { ranges, current, jump } = useMatches(conversation, find, first);
  useKeys({ '/': () => field.current.focus(), n: () => jump(1), N: () => jump(-1) });
  useEffect(() => () => clearTimeout(timer.current), []);
  const type = (event) => {
    const text = event.target.value;
    clearTimeout(timer.current);
    timer.current = setTimeout(() => setFind(text), DEBOUNCE_MS);
  };
  const onKeyDown = (event) => {
    if (event.key === 'Escape') {
      event.preventDefault(); // Chromium would empty the field, so that n and N would find nothing
      event.target.blur();
    }
    if (event.key !== 'Enter') return;
    clearTimeout(timer.current);
    if (event.target.value === find) jump(event.shiftKey ? -1 : 1);
    else setFind(event.target.value);
  };
  return html`<div class="findbar" role="search" aria-label="Find in this rollout">
    <input ref=${field} type="search" aria-label="Find in this rollout" placeholder="find  ( / )" value=${find} onInput=${type} onKeyDown=${onKeyDown} />
    ${find && html`<span class="small soft number" role="status">${statusText(ranges, current)}</span>
      <button class="quiet" title="Previous match (N)" aria-label="Previous match" disabled=${!ranges.length} onClick=${() => jump(-1)}>↑</button>
      <button class="quiet" title="Next match (n)" aria-label="Next match" disabled=${!ranges.length} onClick=${() => jump(1)}>↓</button>`}
  </div>`;
}

function statusText(ranges, current) {
  if (!ranges.length) return 'not in the conversation';
  const all = ranges.length === MAX_MATCHES ? `more than ${count(MAX_MATCHES)}` : count(ranges.length);
  return current < 0 ? `${all} found` : `${count(current + 1)} of ${all}`;
}

/** The ranges that match, which are marked with the CSS Custom Highlight API, so that no element is added for them. */
function useMatches(conversation, find, first) {
  const [ranges, setRanges] = useState([]);
  const [current, setCurrent] = useState(-1);
  const opening = useRef({ find, event: first });
  useEffect(() => {
    const root = conversation.current;
    if (!root) return undefined;
    const update = () => {
      const found = find ? rangesOf(root, find) : [];
      setRanges(found);
      const { event } = opening.current.find === find ? opening.current : { event: -1 };
      const at = event < 0 ? -1 : found.findIndex((range) => eventOf(range) === event);
      if (event >= 0 && at < 0) root.querySelector(`[data-index="${event}"]`)?.scrollIntoView({ block: 'center' });
      if (at < 0) return;
      opening.current = { find, event: -1 };
      setCurrent(at);
      reveal(found[at]);
    };
    setCurrent(-1);
    update();
    if (!find) return undefined;
    let frame = 0;
    const observer = new MutationObserver(() => {
      frame ||= requestAnimationFrame(() => {
        frame = 0;
        update();
      });
    });
    observer.observe(root, { childList: true, subtree: true, characterData: true });
    return () => {
      observer.disconnect();
      cancelAnimationFrame(frame);
    };
  }, [find]);
  // A layout effect, so that the matches are marked as soon as they are counted.
  useLayoutEffect(() => {
    mark('find', ranges);
    mark('find-current', ranges[current] ? [ranges[current]] : []);
    return () => {
      mark('find', []);
      mark('find-current', []);
    };
  }, [ranges, current]);
  const jump = (by) => {
    if (!ranges.length) return false;
    const next = current < 0 && by < 0 ? ranges.length - 1 : (current + by + ranges.length) % ranges.length;
    setCurrent(next);
    reveal(ranges[next]);
    return true;
  };
  return { ranges, current: Math.min(current, ranges.length - 1), jump };
}

/** The index of the event that contains the range. @param {Range} range */
function eventOf(range) {
  return Number(/** @type {HTMLElement | null} */ (range.startContainer.parentElement?.closest('[data-index]'))?.dataset.index ?? -1);
}

function mark(name, ranges) {
  if (!globalThis.CSS?.highlights) return; // an old browser: jumping works without marks
  if (ranges.length) CSS.highlights.set(name, new Highlight(...ranges));
  else CSS.highlights.delete(name);
}

/** Opens what a match is folded into, and scrolls to it. @param {Range} range */
function reveal(range) {
  for (let place = range.startContainer.parentElement; place; place = place.parentElement) {
    if (place instanceof HTMLDetailsElement) place.open = true;
  }
  const { top, bottom } = range.getBoundingClientRect();
  if (top < innerHeight * 0.15 || bottom > innerHeight * 0.85) scrollBy(0, top - innerHeight / 3);
}

function rangesOf(root, find) {
  const found = [];
  for (const nodes of textBlocks(root)) {
    const text = nodes.map((node) => node.data).join('');
    const positions = matchPositions(text, find, MAX_MATCHES - found.length);
    const starts = placesOf(nodes, positions, 0);
    placesOf(nodes, positions.map((at) => at + find.length - 1), 1).forEach(([node, at], i) => {
      const range = new Range();
      range.setStart(...starts[i]);
      range.setEnd(node, at);
      found.push(range);
    });
    if (found.length >= MAX_MATCHES) break;
  }
  return found;
}

/** The text nodes of each text, because a match can extend over several elements. @returns {Text[][]} */
function textBlocks(root) {
  const accept = (node) => (node.parentElement.closest('header, button, summary, .readout') ? NodeFilter.FILTER_REJECT : NodeFilter.FILTER_ACCEPT);
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT, accept);
  /** @type {Text[][]} */
  const blocks = [];
  let last = null;
  while (walker.nextNode()) {
    const block = walker.currentNode.parentElement.closest(BLOCKS);
    if (!block) continue;
    const node = /** @type {Text} */ (walker.currentNode);
    if (block === last) blocks.at(-1).push(node);
    else blocks.push([node]);
    last = block;
  }
  return blocks;
}

/** The nodes that contain the characters at ascending positions, each with the place in it, or `after` it. @returns {[Text, number][]} */
function placesOf(nodes, positions, after) {
  let [node, start] = [0, 0];
  return positions.map((at) => {
    while (at >= start + nodes[node].length) {
      start += nodes[node].length;
      node += 1;
    }
    return [nodes[node], at - start + after];
  });
}
