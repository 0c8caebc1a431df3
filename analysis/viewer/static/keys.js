/** Keyboard shortcuts and the hook that handles them. */
import { useLayoutEffect, useRef } from './vendor/htm-preact.js';

/** The shortcuts that `?` shows. @type {[string, [string, string][]][]} */
export const KEYS = [
  ['Everywhere', [['?', 'show keyboard shortcuts'], ['g o', 'overview'], ['g r', 'rollouts of the first run, or of the last step'], ['g f', 'findings'], ['g a', 'failed attempts'], ['g n', 'notes and labels'], ['g l', 'live'], ['t', 'light or dark theme']]],
  ['List', [['j  k  ↓  ↑', 'next, previous rollout'], ['Enter', 'open it'], ['/', 'search'], ['e', 'expression'], ['n  p', 'next, previous page'],
    ['[  ]', 'previous, next step of a training run']]],
  ['Rollout', [['[  ]', 'previous, next rollout'], ['u', 'back to the list'], ['Space', 'play or pause the board'],
    ['←  →', 'one move back, forward'], ['Home  End', 'first, last move'], ['j  k', 'next, previous event'],
    ['J  K', 'next, previous turn'], ['/', 'find'], ['n  N', 'next, previous match'], ['m', 'render prompts or answers'],
    ['p', 'probabilities of tokens'], ['s', 'side by side with another repeat']]],
  ['Labels, on a rollout or the selected row', [['l', 'add or remove a label'], ['1 … 9', 'the labels used most'], ['w', 'write a note'],
    ['c  x', 'correct, wrong'], ['v', 'verdict with a reason, or a reward'], ['z', 'undo']]],
  ['Failed attempt, live episode', [['[  ]', 'earlier, later attempt at the same rollout'], ['u', 'back to the list'], ['n', 'newest message of a live episode'],
    ['Space  ←  →', 'the board, as for a rollout'], ['m', 'render prompts or answers']]],
  ['Comparison of runs', [['n  p', 'next, previous page']]],
  ['Mismatch of probabilities', [['[  ]', 'previous, next step']]],
  ['Two rollouts', [['n  p', 'next, previous difference'], ['Space', 'play or pause both boards'],
    ['←  →', 'both boards one turn back, forward'], ['Home  End', 'first, last turn'], ['u', 'back to the rollouts of the task']]],
];

const PREFIX = 'g';

/** Calls the handler of the pressed key unless a field has the focus. A handler that returns false leaves the key to the browser.
 * @param {Record<string, (event: KeyboardEvent) => unknown>} handlers */
export function useKeys(handlers) {
  const previousKey = useRef('');
  // A layout effect, so that the keys work as soon as the page is visible.
  useLayoutEffect(() => {
    const onKeyDown = (event) => {
      const before = previousKey.current;
      previousKey.current = '';
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (belongsToFocus(event.target, event.key) || document.querySelector('dialog[open]')) return;
      previousKey.current = event.key;
      if (event.defaultPrevented) return;
      // The key after a prefix is never an action of its own, whichever component has the sequence.
      const name = before === PREFIX ? `${PREFIX} ${event.key}` : event.key;
      if (Object.hasOwn(handlers, name) && handlers[name](event) !== false) event.preventDefault();
    };
    addEventListener('keydown', onKeyDown);
    return () => removeEventListener('keydown', onKeyDown);
  });
}

function belongsToFocus(target, key) {
  if (!(target instanceof HTMLElement)) return false;
  if (target instanceof HTMLInputElement) return target.type !== 'checkbox' || key === ' ';
  if (target instanceof HTMLSelectElement || target instanceof HTMLTextAreaElement) return true;
  return (key === ' ' || key === 'Enter') && target.closest('button, summary, a') !== null;
}
