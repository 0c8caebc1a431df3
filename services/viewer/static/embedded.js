/** The data of an exported page: the recorded responses of /api. Filtering and sorting happen here. */
import { chosen, order } from './filtering.js';

const found = document.getElementById('embedded');

/** The exported data, or null if the page has a server. */
export const embedded = found ? JSON.parse(found.textContent) : null;

/**
 * Returns what the server would have responded.
 * @param {Record<string, any>} data
 * @param {string} path
 */
export function answer(data, path) {
  const [place, query = ''] = path.split('?');
  const parts = place.split('/');
  const asked = new URLSearchParams(query);
  if (parts[0] === 'overview') return data.overview;
  if (parts[0] === 'compare') return comparison(data, asked);
  if (parts[0] === 'live') throw new Error('An exported file has no live data.');
  const [, run, what, task, repeat] = parts;
  if (what === 'profile') return own(data.profiles, run);
  if (what === 'rollouts' && task === undefined) return chosen(searched(data, run, asked.get('q') ?? ''), asked);
  if (what === 'rollouts') return story(data, run, task, repeat);
  return stories(data, run, task);
}

/** @param {Record<string, any>} among @param {string} key */
function own(among, key) {
  if (among && Object.hasOwn(among, key)) return among[key];
  throw new Error('This was not exported into this file.');
}

/** The exported rollouts that contain `words`; `held` is the number of rollouts in the file. */
function searched(data, run, words) {
  const page = { ...own(data.pages, run), held: data.pages[run].lines.length };
  const wanted = words.toLowerCase();
  const matches = (line) => {
    const story = data.stories[`${run}/${line.task}/${line.repeat}`];
    return Boolean(story) && contains([story.events, story.facts, story.attempts], wanted);
  };
  return wanted ? { ...page, lines: page.lines.filter(matches) } : page;
}

/** Whether a text in a nested value contains `wanted`. @param {any} value @param {string} wanted */
function contains(value, wanted) {
  if (typeof value === 'string') return value.toLowerCase().includes(wanted);
  if (typeof value !== 'object' || value === null) return value !== null && String(value).includes(wanted);
  return Object.values(value).some((one) => contains(one, wanted));
}

/** An exported rollout; its neighbours are exported rollouts. */
function story(data, run, task, repeat) {
  const found = own(data.stories, `${run}/${task}/${repeat}`);
  const { lines } = chosen(own(data.pages, run), new URLSearchParams({ sort: 'task', limit: 'Infinity' }));
  const at = lines.findIndex((line) => String(line.task) === task && String(line.repeat) === repeat);
  const place = (line) => (line ? [line.task, line.repeat] : null);
  return { ...found, previous: place(lines[at - 1]), next: place(lines[at + 1]) };
}

/** All exported repeats of a task. */
function stories(data, run, task) {
  const lines = own(data.pages, run).lines.filter((line) => String(line.task) === task);
  const kept = lines.map((line) => data.stories[`${run}/${line.task}/${line.repeat}`]).filter(Boolean);
  if (!kept.length) throw new Error('No rollout of this task was exported into this file.');
  const tasks = own(data.pages, run).lines.map((line) => line.task);
  const before = tasks.filter((one) => one < Number(task));
  const after = tasks.filter((one) => one > Number(task));
  return {
    run: Number(run), task: Number(task), stories: kept, total: kept.length, start: 0,
    previous: before.length ? Math.max(...before) : null, next: after.length ? Math.min(...after) : null,
  };
}

/** The exported comparison, sorted as requested. */
function comparison(data, asked) {
  const whole = data.comparison;
  const same = whole && String(whole.runs[0]) === asked.get('first') && String(whole.runs[1]) === asked.get('second');
  if (!same) throw new Error('This comparison was not exported into this file.');
  const sort = asked.get('sort') || '';
  const start = Number(asked.get('start') || 0);
  const change = ([before, after]) => (before === null || after === null ? null : after - before);
  const keys = {
    task: (pair) => pair.task,
    change: (pair) => change(pair.solved) ?? change(pair.rewards),
    first: (pair) => pair.rewards[0],
    second: (pair) => pair.rewards[1],
  };
  const key = keys[sort.replace('-', '')];
  const tasks = [...whole.tasks];
  if (key) tasks.sort(order(key, sort.startsWith('-')));
  return { ...whole, tasks: tasks.slice(start, start + Number(asked.get('limit') || 100)), start, total: tasks.length };
}
