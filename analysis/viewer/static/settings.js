/** Choices of the user that persist in the browser. */
import { useState } from './vendor/htm-preact.js';

/**
 * A choice and its setter. Without storage, as in some pages opened from a file, it lasts until the page is closed.
 * @param {string} name
 * @param {boolean} initial
 * @returns {[boolean, (value: boolean) => void]}
 */
export function useSetting(name, initial) {
  const key = `rollyard-${name}`;
  const [value, set] = useState(() => stored(key) ?? initial);
  return [value, (next) => {
    set(next);
    try {
      localStorage.setItem(key, String(next));
    } catch {
      // the choice cannot be kept
    }
  }];
}

/** @param {string} key @returns {boolean | null} */
function stored(key) {
  try {
    const found = localStorage.getItem(key);
    return found === null ? null : found === 'true';
  } catch {
    return null;
  }
}
