/** The keyboard: which key does what, and how a page listens. */
import { useLayoutEffect, useRef } from './vendor/htm-preact.js';

/** What `?` shows. @type {[string, [string, string][]][]} */
export const KEYS = [
  ['Everywhere', [['?', 'these keys'], ['g o', 'overview'], ['g r', 'rollouts of the first run'], ['g l', 'live'], ['t', 'light or dark']]],
  ['List', [['j  k  ↓  ↑', 'next, previous rollout'], ['Enter', 'open it'], ['/', 'search'], ['n  p', 'next, previous page']]],
  ['Rollout', [['[  ]', 'previous, next rollout'], ['u', 'back to the list'], ['Space', 'play or pause the board'],
    ['←  →', 'one move back, ahead'], ['Home  End', 'first, last move'], ['j  k', 'next, previous event']]],
];

/**
 * Calls what is named by the key, while no field is written in. A handler that returns false leaves the key to the browser.
 * @param {Record<string, (event: KeyboardEvent) => unknown>} handlers
 */
export function useKeys(handlers) {
  const before = useRef('');
  // Before anybody can see that a page is there, its keys work.
  useLayoutEffect(() => {
    const pressed = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
      if (writing(event.target, event.key) || document.querySelector('dialog[open]')) return;
      const both = `${before.current} ${event.key}`;
      const name = Object.hasOwn(handlers, both) ? both : event.key;
      before.current = event.key;
      if (Object.hasOwn(handlers, name) && handlers[name](event) !== false) event.preventDefault();
    };
    addEventListener('keydown', pressed);
    return () => removeEventListener('keydown', pressed);
  });
}

/** Whether the key belongs to the element that has the focus. */
function writing(target, key) {
  if (!(target instanceof HTMLElement)) return false;
  if (target instanceof HTMLInputElement) return target.type !== 'checkbox' || key === ' ';
  if (target instanceof HTMLSelectElement || target instanceof HTMLTextAreaElement) return true;
  return (key === ' ' || key === 'Enter') && target.closest('button, summary, a') !== null;
}
