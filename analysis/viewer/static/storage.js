/** What this browser remembers. Without storage, as in some pages opened from a file, nothing is kept. */
import { useState } from './vendor/htm-preact.js';

const browserStorage = () => localStorage;

/** The text that is kept under a key, or null. @param {string} key */
export function kept(key, storage = browserStorage) {
  try {
    return storage().getItem(key);
  } catch {
    return null;
  }
}

/** Keeps a text, and returns whether the browser did. @param {string} key @param {string} text */
export function keep(key, text, storage = browserStorage) {
  try {
    storage().setItem(key, text);
    return true;
  } catch {
    return false;
  }
}

const VIEWS = 'rollyard.views';

/** All views by name; none if there is no storage, or if its content is invalid. @returns {[string, string][]} */
export function savedViews(storage = undefined) {
  try {
    return Object.entries(JSON.parse(kept(VIEWS, storage) ?? '{}')).filter(([, query]) => typeof query === 'string').sort();
  } catch {
    return [];
  }
}

/** Saves a view, or removes it if `query` is null; returns whether the browser kept it. @param {string} name @param {string | null} query */
export function saveView(name, query, storage = undefined) {
  const others = savedViews(storage).filter(([one]) => one !== name);
  return keep(VIEWS, JSON.stringify(Object.fromEntries(query === null ? others : [...others, [name, query]])), storage);
}

/** The part of a list's query that a view contains. @param {URLSearchParams} query */
export function viewOf(query) {
  const kept = [...query].filter(([key]) => !['start', 'at', 'facet'].includes(key));
  return new URLSearchParams(kept).toString();
}

const KEY = 'rollyard-theme';
const ORDER = ['auto', 'light', 'dark'];

/** @returns {string} */
export function theme() {
  const chosen = kept(KEY);
  return ORDER.includes(chosen) ? chosen : 'auto';
}

export function applyTheme() {
  document.documentElement.dataset.theme = theme();
}

export function nextTheme() {
  const next = ORDER[(ORDER.indexOf(theme()) + 1) % ORDER.length];
  keep(KEY, next);
  document.documentElement.dataset.theme = next;
  return next;
}

/** A choice and its setter. @param {string} name @param {boolean} initial @returns {[boolean, (value: boolean) => void]} */
export function useSetting(name, initial) {
  const key = `rollyard-${name}`;
  const [value, set] = useState(() => (kept(key) === null ? initial : kept(key) === 'true'));
  return [value, (next) => {
    set(next);
    keep(key, String(next));
  }];
}
