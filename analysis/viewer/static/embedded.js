/** The data of an exported page: the recorded responses of /api. Filters and sorts in the browser. */
import { snippetOf } from './textmatches.js';

const element = globalThis.document?.getElementById('embedded'); // Node has no document

export const embedded = element ? JSON.parse(element.textContent) : null;

/** Returns what the server would have responded. @param {Record<string, any>} data @param {string} path */
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

function rolloutView(data, run, task, repeat) {
  const view = lookUp(data.stories, `${run}/${task}/${repeat}`);
  const { lines } = filtered(lookUp(data.pages, run), new URLSearchParams({ sort: 'task', limit: 'Infinity' }));
  const index = lines.findIndex((line) => String(line.task) === task && String(line.repeat) === repeat);
  const key = (line) => (line ? [line.task, line.repeat] : null);
  return { ...view, previous: key(lines[index - 1]), next: key(lines[index + 1]) };
}

function attemptList(data, run, params) {
  const all = Object.values(data.attempts).filter((one) => String(one.run) === run).map((one) => one.line).sort(compareBy((line) => line.when, true));
  const kinds = {};
  for (const line of all) kinds[line.kind] = (kinds[line.kind] ?? 0) + 1;
  const lines = params.get('kind') ? all.filter((line) => line.kind === params.get('kind')) : all;
  const start = Number(params.get('start') || 0);
  return { total: lines.length, start, lines: lines.slice(start, start + Number(params.get('limit') || 100)), kinds };
}

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

const COLUMNS = new Set(['task', 'repeat', 'reward', 'success', 'tool_calls', 'turns', 'output_tokens', 'seconds', 'end', 'agent']);

export function filtered(page, params) {
  const lines = page.lines.filter((line) => passes(line, params));
  const sort = params.get('sort') || 'task';
  const name = sort.replace(/^-/, '');
  const column = (page.columns ?? []).findIndex((head) => head.path === name);
  const key = COLUMNS.has(name) ? (line) => line[name] : column >= 0 && ((line) => line.cells?.[column] ?? null);
  if (key) lines.sort(compareBy(key, sort.startsWith('-')));
  const [wanted, limit] = [Number(params.get('start') || 0), Number(params.get('limit') || 100)];
  const start = wanted < lines.length ? wanted : Math.floor(Math.max(lines.length - 1, 0) / limit) * limit;
  const shown = lines.slice(start, start + limit);
  return { ...page, total: lines.length, start, lines: shown, cells: shown.map((line) => line.cells ?? []), searched: 1 };
}

/** Missing values come last in both directions; ties are ordered by task. */
export function compareBy(key, descending) {
  return (a, b) => {
    const [first, second] = [key(a), key(b)];
    if (first === null || second === null) return Number(first === null) - Number(second === null);
    const less = first < second ? -1 : Number(first > second);
    return (descending ? -less : less) || a.task - b.task || (a.repeat ?? 0) - (b.repeat ?? 0);
  };
}

/** Tolerance for rounding errors, because rewards are sums; the same as on the server. */
const ROUNDING = 1e-9;

function passes(line, params) {
  const ends = (name, value, tolerance) => (!params.get(`min_${name}`) || (value !== null && value >= Number(params.get(`min_${name}`)) - tolerance))
    && (!params.get(`max_${name}`) || (value !== null && value <= Number(params.get(`max_${name}`)) + tolerance));
  return ['task', 'repeat', 'success', 'outcome', 'end', 'agent'].every((name) => !params.get(name) || params.get(name) === String(line[name]))
    && ends('reward', line.reward, ROUNDING) && ends('tool_calls', line.tool_calls, 0);
}
