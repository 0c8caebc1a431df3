/** What this browser remembers. Without storage, as in some pages opened from a file, nothing is kept. */
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
const DEFAULTS = 'rollyard.defaults';

/** The stored object; empty if there is none, or if it is invalid. */
function stored(storage, key) {
  try {
    const found = JSON.parse(kept(key, storage) ?? '{}');
    return typeof found === 'object' && found !== null && !Array.isArray(found) ? found : {};
  } catch {
    return {};
  }
}

/** All views by name. @returns {[string, string][]} */
export function savedViews(storage = undefined) {
  return Object.entries(stored(storage, VIEWS)).filter(([, query]) => typeof query === 'string').sort();
}

/** Saves a view, or removes it if `query` is null; returns whether the browser kept it. @param {string} name @param {string | null} query */
export function saveView(name, query, storage = undefined) {
  const { [name]: _, ...others } = stored(storage, VIEWS);
  return keep(VIEWS, JSON.stringify(query === null ? others : { ...others, [name]: query }), storage);
}

/** The query with which the list of a file opens, or ''. @param {string} path */
export function defaultView(path, storage = undefined) {
  const found = stored(storage, DEFAULTS);
  return Object.hasOwn(found, path) && typeof found[path] === 'string' ? found[path] : '';
}

/** Sets the default view of a file; '' removes it. @param {string} path @param {string} query */
export function setDefaultView(path, query, storage = undefined) {
  const { [path]: _, ...others } = stored(storage, DEFAULTS);
  return keep(DEFAULTS, JSON.stringify(query ? { ...others, [path]: query } : others), storage);
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

/** The next of auto, light, dark. */
export function nextTheme() {
  const next = ORDER[(ORDER.indexOf(theme()) + 1) % ORDER.length];
  keep(KEY, next);
  document.documentElement.dataset.theme = next;
  dispatchEvent(new Event('themechange'));
  return next;
}
