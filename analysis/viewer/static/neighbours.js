/** The previous and the next rollout: in the list that the user came from, else in the order of tasks. */
import { PAGE_LENGTH } from './pages/list.js';
import { useData } from './data.js';
import { changed, link } from './route.js';
import { count } from './formatting.js';

/**
 * The address contains the list's query; `at` is the position in the list.
 * @param {import('./route.js').Route} route
 * @param {any} rollout
 * @returns {{list: string, previous: string | null, next: string | null, place: string}}
 */
export function useNeighbours(route, rollout) {
  const [, run, , task, repeat] = route.path;
  const at = Number.parseInt(route.query.get('at') ?? '', 10);
  const listed = Number.isFinite(at) && at >= 0;
  const start = Math.max(0, at - 1);
  const request = changed(route.query, { at: null, facet: null, match: null, columns: 'task', start, limit: 3 });
  const { value: page } = useData(listed ? `runs/${run}/rollouts?${request}` : null);
  const lines = page?.lines ?? [];
  const here = lines.findIndex((line) => String(line.task) === task && String(line.repeat) === repeat);
  const query = changed(route.query, { at: null, match: null });
  if (listed && page && here >= 0) {
    const to = (step) => {
      const line = lines[here + step];
      return line ? link(['runs', run, 'tasks', line.task, line.repeat], changed(query, { at: page.start + here + step })) : null;
    };
    const from = Math.floor(at / PAGE_LENGTH) * PAGE_LENGTH;
    const list = link(['runs', run], changed(query, { start: from || null }));
    return { list, previous: to(-1), next: to(1), place: `${count(page.start + here + 1)} of ${count(page.total)}` };
  }
  const same = rollout && String(rollout.line.task) === task && String(rollout.line.repeat) === repeat;
  const isLoading = listed && !page;
  const to = (key) => (same && key && !isLoading ? link(['runs', run, 'tasks', ...key]) : null);
  return { list: link(['runs', run], query), previous: to(rollout?.previous), next: to(rollout?.next), place: '' };
}
