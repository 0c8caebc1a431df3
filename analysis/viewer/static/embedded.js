/** The data of an exported page: the recorded responses of /api. Filters and sorts in the browser. */
import { compareBy, filtered } from './filtering.js';
import { snippetOf } from './textmatches.js';

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
  if (resource === 'findings') return lookUp(data.findings, run);
  if (resource === 'notes') return lookUp(data.notes, task === undefined ? run : `${run}/${task}`);
  if (resource === 'attempts') return task === undefined ? attemptList(data, run, params) : lookUp(data.attempts, parts.slice(1, 2).concat(parts.slice(3)).join('/'));
  if (resource === 'profile') return lookUp(data.profiles, run);
  if (resource === 'rollouts' && task === undefined) return withSnippets(data, run, filtered(searched(data, run, params.get('q') ?? ''), params), params);
  return rolloutView(data, run, task, repeat);
}

function lookUp(records, key) {
  if (records && Object.hasOwn(records, key)) return records[key];
  throw new Error('This file does not contain the requested data.');
}

/** The exported rollouts that contain `text`; `exported` is the number of rollouts in the file. */
function searched(data, run, text) {
  const recorded = lookUp(data.pages, run);
  const lines = recorded.lines.map((line, at) => ({ ...line, cells: recorded.cells?.[at] ?? [] }));
  const page = { ...recorded, lines, exported: lines.length };
  const needle = text.toLowerCase();
  const matches = (line) => {
    const view = data.stories[`${run}/${line.task}/${line.repeat}`];
    return Boolean(view) && contains([view.events, view.facts, view.attempts], needle);
  };
  return needle ? { ...page, lines: page.lines.filter(matches) } : page;
}

/** The page with what the searched text matches in each line. */
function withSnippets(data, run, page, params) {
  const text = params.get('q') ?? '';
  if (!text) return page;
  return { ...page, snippets: page.lines.map((line) => snippetOf(data.stories[`${run}/${line.task}/${line.repeat}`]?.events ?? [], text)) };
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

/** The failed attempts at exported rollouts, latest first. */
function attemptList(data, run, params) {
  const all = Object.values(data.attempts).filter((one) => String(one.run) === run).map((one) => one.line).sort(compareBy((line) => line.when, true));
  const kinds = {};
  for (const line of all) kinds[line.kind] = (kinds[line.kind] ?? 0) + 1;
  const lines = params.get('kind') ? all.filter((line) => line.kind === params.get('kind')) : all;
  const start = Number(params.get('start') || 0);
  return { total: lines.length, start, lines: lines.slice(start, start + Number(params.get('limit') || 100)), kinds };
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
