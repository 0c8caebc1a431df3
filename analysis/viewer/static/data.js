/** Loads data from the server's /api, or from the data embedded in an exported page. */
import { useEffect, useRef, useState } from './vendor/htm-preact.js';
import { embedded, embeddedResponse } from './embedded.js';

export const IS_EXPORT = embedded !== null;

export const EXPORT_VIEW = embedded?.view ?? '';

/** Fetches a text; throws an error with a readable message if the request fails. @param {string} path @param {AbortSignal} [signal] */
export async function fetchText(path, signal, init = {}) {
  let response;
  try {
    response = await fetch(`api/${path}`, { signal, credentials: 'same-origin', ...init });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Error('The viewer does not respond. Check that ng_viewer is still running.');
  }
  const text = await response.text();
  if (!response.ok) throw new Error(problem(text) || `The viewer responded with status ${response.status} to ${path}.`);
  return text;
}

/** The message of an error response (RFC 9457). @param {string} text */
function problem(text) {
  try {
    const body = JSON.parse(text);
    return [body.title, body.detail].filter((part) => typeof part === 'string').join(': ');
  } catch {
    return '';
  }
}

/** Sends a JSON body and returns the response; throws an error with a readable message. @param {string} path @param {any} body */
export async function postJson(path, body) {
  const headers = { 'content-type': 'application/json' };
  return JSON.parse(await fetchText(path, undefined, { method: 'POST', headers, body: JSON.stringify(body) }));
}

/** The response to a path. @param {string} path @param {AbortSignal} [signal] */
export async function loadJson(path, signal) {
  return embedded ? embeddedResponse(embedded, path) : JSON.parse(await fetchText(path, signal));
}

/** The response to a path, requested again after `interval(value)` milliseconds unless that is 0. While the next path is loading, the
 * previous value stays and `stale` is true. @template T @param {string | null} path @param {(value: T) => number} [interval]
 * @param {string} [version] what the response depends on besides the path; if it changes, the path is requested again
 * @returns {{value: T | null, error: Error | null, stale: boolean}} */
export function useData(path, interval = () => 0, version = '') {
  const [state, set] = useState({ path: null, value: null, error: null });
  const latest = useRef(interval);
  latest.current = interval;
  useEffect(() => {
    if (path === null) return undefined;
    const controller = new AbortController();
    let timer = 0;
    const load = async () => {
      let wait = 0;
      try {
        const value = await loadJson(path, controller.signal);
        if (controller.signal.aborted) return;
        set({ path, value, error: null });
        wait = latest.current(value);
      } catch (error) {
        if (controller.signal.aborted) return;
        set((old) => ({ path, value: old.path === path ? old.value : null, error }));
        wait = latest.current(null);
      }
      if (wait && !IS_EXPORT) timer = setTimeout(load, wait);
    };
    load();
    return () => {
      controller.abort();
      clearTimeout(timer);
    };
  }, [path, version]);
  return { value: state.value, error: state.error, stale: state.path !== path };
}
