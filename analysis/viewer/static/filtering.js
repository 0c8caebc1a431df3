/** Filters and sorts the rollouts of an exported page. The query has the same form as the server's. */
const KEYS = {
  task: (line) => line.task,
  repeat: (line) => line.repeat,
  reward: (line) => line.reward,
  success: (line) => (line.success === null ? null : Number(line.success)),
  tool_calls: (line) => line.tool_calls,
  turns: (line) => line.turns,
  output_tokens: (line) => line.output_tokens,
  seconds: (line) => line.seconds,
  end: (line) => line.end,
  agent: (line) => line.agent,
};

export function filtered(page, params) {
  const lines = page.lines.filter((line) => passes(line, params));
  const sort = params.get('sort') || 'task';
  const name = sort.replace(/^-/, '');
  const column = (page.columns ?? []).findIndex((head) => head.path === name);
  const key = Object.hasOwn(KEYS, name) ? KEYS[name] : column >= 0 && ((line) => line.cells?.[column] ?? null);
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
  const equals = (name, value) => !params.get(name) || params.get(name) === String(value);
  const passesMinimum = (name, value, tolerance = 0) => !params.get(name) || (value !== null && value >= Number(params.get(name)) - tolerance);
  const passesMaximum = (name, value, tolerance = 0) => !params.get(name) || (value !== null && value <= Number(params.get(name)) + tolerance);
  return equals('task', line.task) && equals('repeat', line.repeat) && equals('success', line.success) && equals('outcome', line.outcome)
    && equals('end', line.end) && equals('agent', line.agent)
    && passesMinimum('min_reward', line.reward, ROUNDING) && passesMaximum('max_reward', line.reward, ROUNDING)
    && passesMinimum('min_tool_calls', line.tool_calls) && passesMaximum('max_tool_calls', line.tool_calls);
}

const NO_FILTERS = new Set(['sort', 'start', 'columns', 'facet']);

/** The number of conditions in the address; the two ends of a range are one. @param {URLSearchParams} query */
export function activeFilters(query) {
  const names = [...query].filter(([name, value]) => value && !NO_FILTERS.has(name)).map(([name]) => name.replace(/^(min|max)_/, ''));
  return new Set(names).size;
}
