/** The data of an exported page: the recorded responses of /api. Filters and sorts in the browser. */
import { compareBy, filtered } from './filtering.js';

const element = document.getElementById('embedded');

/** The exported data, or null if the page has a server. */
export const embedded = element ? JSON.parse(element.textContent) : null;

/**
 * Returns what the server would have responded.
 * @param {Record<string, any>} data
 * @param {string} path
 */
export function embeddedResponse(data, path) {
  const [route, query = ''] = path.split('?');
  const parts = route.split('/');
  const params = new URLSearchParams(query);
  if (parts[0] === 'overview') return data.overview;
  if (parts[0] === 'compare') return comparison(data, params);
  if (parts[0] === 'live') throw new Error('An exported file has no live data.');
  const [, run, resource, task, repeat] = parts;
  if (resource === 'profile') return lookUp(data.profiles, run);
  if (resource === 'rollouts' && task === undefined) return filtered(searched(data, run, params.get('q') ?? ''), params);
  if (resource === 'rollouts') return rolloutView(data, run, task, repeat);
  return taskRollouts(data, run, task);
}

/** @param {Record<string, any>} records @param {string} key */
function lookUp(records, key) {
  if (records && Object.hasOwn(records, key)) return records[key];
  throw new Error('This file does not contain the requested data.');
}

/** The exported rollouts that contain `text`; `exported` is the number of rollouts in the file. */
function searched(data, run, text) {
  const page = { ...lookUp(data.pages, run), exported: data.pages[run].lines.length };
  const needle = text.toLowerCase();
  const matches = (line) => {
    const view = data.stories[`${run}/${line.task}/${line.repeat}`];
    return Boolean(view) && contains([view.events, view.facts, view.attempts], needle);
  };
  return needle ? { ...page, lines: page.lines.filter(matches) } : page;
}

/** Whether a text in a nested value contains `needle`. @param {any} value @param {string} needle */
function contains(value, needle) {
  if (typeof value === 'string') return value.toLowerCase().includes(needle);
  if (typeof value !== 'object' || value === null) return value !== null && String(value).includes(needle);
  return Object.values(value).some((one) => contains(one, needle));
}

/** An exported rollout; its neighbours are exported rollouts. */
function rolloutView(data, run, task, repeat) {
  const view = lookUp(data.stories, `${run}/${task}/${repeat}`);
  const { lines } = filtered(lookUp(data.pages, run), new URLSearchParams({ sort: 'task', limit: 'Infinity' }));
  const index = lines.findIndex((line) => String(line.task) === task && String(line.repeat) === repeat);
  const key = (line) => (line ? [line.task, line.repeat] : null);
  return { ...view, previous: key(lines[index - 1]), next: key(lines[index + 1]) };
}

/** All exported repeats of a task. */
function taskRollouts(data, run, task) {
  const lines = lookUp(data.pages, run).lines.filter((line) => String(line.task) === task);
  const views = lines.map((line) => data.stories[`${run}/${line.task}/${line.repeat}`]).filter(Boolean);
  if (!views.length) throw new Error('No rollout of this task was exported into this file.');
  const tasks = lookUp(data.pages, run).lines.map((line) => line.task);
  const before = tasks.filter((one) => one < Number(task));
  const after = tasks.filter((one) => one > Number(task));
  return {
    run: Number(run), task: Number(task), stories: views, total: views.length, start: 0,
    previous: before.length ? Math.max(...before) : null, next: after.length ? Math.min(...after) : null,
  };
}

/** The exported comparison, sorted as requested. */
function comparison(data, params) {
  const recorded = data.comparison;
  const same = recorded && String(recorded.runs[0]) === params.get('first') && String(recorded.runs[1]) === params.get('second');
  if (!same) throw new Error('This comparison was not exported into this file.');
  const sort = params.get('sort') || '';
  const start = Number(params.get('start') || 0);
  const change = ([before, after]) => (before === null || after === null ? null : after - before);
  const keys = {
    task: (pair) => pair.task,
    change: (pair) => change(pair.solved) ?? change(pair.rewards),
    first: (pair) => pair.rewards[0],
    second: (pair) => pair.rewards[1],
  };
  const key = keys[sort.replace('-', '')];
  const tasks = [...recorded.tasks];
  if (key) tasks.sort(compareBy(key, sort.startsWith('-')));
  return { ...recorded, tasks: tasks.slice(start, start + Number(params.get('limit') || 100)), start, total: tasks.length };
}
