/** The current route, from the hash of the address, such as `#/runs/0/tasks/12?sort=-reward`. */
import { useEffect, useState } from './vendor/htm-preact.js';

/** @typedef {{path: string[], query: URLSearchParams}} Route */

export function parse(hash) {
  const cut = hash.indexOf('?');
  const path = (cut < 0 ? hash : hash.slice(0, cut)).replace(/^#\/?/, '');
  return { path: path.split('/').filter(Boolean), query: new URLSearchParams(cut < 0 ? '' : hash.slice(cut + 1)) };
}

/** A part of an address without its percent signs; unchanged if they are invalid. @param {string} part */
export function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** Returns the address of a route without empty query values. @param {(string | number)[]} path
 * @param {URLSearchParams | Record<string, string | number | null>} [query] */
export function link(path, query = {}) {
  const pairs = query instanceof URLSearchParams ? [...query] : Object.entries(query);
  const kept = pairs.filter(([, value]) => value !== '' && value !== null && value !== undefined);
  const queryString = new URLSearchParams(kept.map(([key, value]) => [key, String(value)])).toString();
  return `#/${path.map(encodeURIComponent).join('/')}${queryString ? `?${queryString}` : ''}`;
}

/** Navigates to an address; `replace` replaces the current history entry. @param {string} href */
export function go(href, replace = false) {
  if (replace) location.replace(href);
  else location.hash = href;
}

/** A copy of the query with changes; null and '' remove a key. @param {URLSearchParams} query @param {Record<string, string | number | null>} changes */
export function changed(query, changes) {
  const result = new URLSearchParams(query);
  for (const [key, value] of Object.entries(changes)) {
    if (value === '' || value === null) result.delete(key);
    else result.set(key, String(value));
  }
  return result;
}

/** @returns {Route} */
export function useRoute() {
  const [route, set] = useState(() => parse(location.hash));
  useEffect(() => {
    const update = () => set(parse(location.hash));
    addEventListener('hashchange', update);
    return () => removeEventListener('hashchange', update);
  }, []);
  return route;
}

/** Calls the action whenever the address changes. @param {() => void} action */
export function useNavigation(action) {
  useEffect(() => {
    addEventListener('hashchange', action);
    return () => removeEventListener('hashchange', action);
  });
}

export const attemptLink = (run, { task, repeat, at }) => link(['runs', run, 'attempts', task, repeat, at]);

/** The opened run with the file of a collection, or undefined. @param {any} overview @param {string} output */
export const runOfOutput = (overview, output) => overview.runs.find((run) => run.absolute_path === output);
