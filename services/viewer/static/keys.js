/** Keyboard shortcuts and the hook that handles them. */
import { useLayoutEffect, useRef } from './vendor/htm-preact.js';

/** The shortcuts that `?` shows. @type {[string, [string, string][]][]} */
export const KEYS = [
  ['Everywhere', [['?', 'show keyboard shortcuts'], ['g o', 'overview'], ['g r', 'rollouts of the first run, or of the last step'], ['g l', 'live'], ['t', 'light or dark theme']]],
  ['List', [['j  k  ↓  ↑', 'next, previous rollout'], ['Enter', 'open it'], ['/', 'search'], ['n  p', 'next, previous page'],
    ['[  ]', 'previous, next step of a training run']]],
  ['Rollout', [['[  ]', 'previous, next rollout'], ['u', 'back to the list'], ['Space', 'play or pause the board'],
    ['←  →', 'one move back, forward'], ['Home  End', 'first, last move'], ['j  k', 'next, previous event']]],
];

/**
 * Calls the handler of the pressed key unless a field has the focus. A handler that returns false leaves the key to the browser.
 * @param {Record<string, (event: KeyboardEvent) => unknown>} handlers
 */
export function useKeys(handlers) {
  const previousKey = useRef('');
  // A layout effect, so that the keys work as soon as the page is visible.
  useLayoutEffect(() => {
    const onKeyDown = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
      if (belongsToFocus(event.target, event.key) || document.querySelector('dialog[open]')) return;
      const sequence = `${previousKey.current} ${event.key}`;
      const name = Object.hasOwn(handlers, sequence) ? sequence : event.key;
      previousKey.current = event.key;
      if (Object.hasOwn(handlers, name) && handlers[name](event) !== false) event.preventDefault();
    };
    addEventListener('keydown', onKeyDown);
    return () => removeEventListener('keydown', onKeyDown);
  });
}

/** Whether the key belongs to the element that has the focus. */
function belongsToFocus(target, key) {
  if (!(target instanceof HTMLElement)) return false;
  if (target instanceof HTMLInputElement) return target.type !== 'checkbox' || key === ' ';
  if (target instanceof HTMLSelectElement || target instanceof HTMLTextAreaElement) return true;
  return (key === ' ' || key === 'Enter') && target.closest('button, summary, a') !== null;
}
