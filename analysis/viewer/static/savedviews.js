/** Named views of the list, and the default view of each file, in the browser's storage. A view is the query of an address. */
const VIEWS = 'rollyard.views';
const DEFAULTS = 'rollyard.defaults';

/** The stored object; empty if there is none, if it is invalid, or if the browser allows no storage. */
function stored(storage, key) {
  try {
    const found = JSON.parse(storage().getItem(key) ?? '{}');
    return typeof found === 'object' && found !== null && !Array.isArray(found) ? found : {};
  } catch {
    return {};
  }
}

function keep(storage, key, value) {
  try {
    storage().setItem(key, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}

const browserStorage = () => localStorage;

/** All views by name. @returns {[string, string][]} */
export function savedViews(storage = browserStorage) {
  return Object.entries(stored(storage, VIEWS)).filter(([, query]) => typeof query === 'string').sort();
}

/** Saves a view, or removes it if `query` is null; returns whether the browser kept it. @param {string} name @param {string | null} query */
export function saveView(name, query, storage = browserStorage) {
  const { [name]: _, ...others } = stored(storage, VIEWS);
  return keep(storage, VIEWS, query === null ? others : { ...others, [name]: query });
}

/** The query with which the list of a file opens, or ''. @param {string} path */
export function defaultView(path, storage = browserStorage) {
  const found = stored(storage, DEFAULTS);
  return Object.hasOwn(found, path) && typeof found[path] === 'string' ? found[path] : '';
}

/** Sets the default view of a file; '' removes it. @param {string} path @param {string} query */
export function setDefaultView(path, query, storage = browserStorage) {
  const { [path]: _, ...others } = stored(storage, DEFAULTS);
  return keep(storage, DEFAULTS, query ? { ...others, [path]: query } : others);
}

/** The part of a list's query that a view contains. @param {URLSearchParams} query */
export function viewOf(query) {
  const kept = [...query].filter(([key]) => !['start', 'at', 'facet'].includes(key));
  return new URLSearchParams(kept).toString();
}
