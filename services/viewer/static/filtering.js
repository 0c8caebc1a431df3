/** Filters and sorts the list in a page without a server, with the same query as the server. */

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
};

/** @param {any} page @param {URLSearchParams} asked */
export function chosen(page, asked) {
  const lines = page.lines.filter((line) => passes(line, asked));
  const sort = asked.get('sort') || 'task';
  const name = sort.replace(/^-/, '');
  if (Object.hasOwn(KEYS, name)) lines.sort(order(KEYS[name], sort.startsWith('-')));
  const start = Number(asked.get('start') || 0);
  const end = start + Number(asked.get('limit') || 100);
  return { ...page, total: lines.length, start, lines: lines.slice(start, end), searched: 1 };
}

/** Missing values come last in both directions; ties are ordered by task. */
export function order(key, down) {
  return (a, b) => {
    const [first, second] = [key(a), key(b)];
    if (first === null || second === null) return Number(first === null) - Number(second === null);
    const less = first < second ? -1 : Number(first > second);
    return (down ? -less : less) || a.task - b.task || (a.repeat ?? 0) - (b.repeat ?? 0);
  };
}

/** Tolerance for rounding errors, because rewards are sums; the same as on the server. */
const ROUNDING = 1e-9;

function passes(line, asked) {
  const is = (name, value) => !asked.get(name) || asked.get(name) === String(value);
  const least = (name, value, slack = 0) => !asked.get(name) || (value !== null && value >= Number(asked.get(name)) - slack);
  const most = (name, value, slack = 0) => !asked.get(name) || (value !== null && value <= Number(asked.get(name)) + slack);
  return is('task', line.task) && is('repeat', line.repeat) && is('success', line.success) && is('outcome', line.outcome)
    && is('end', line.end) && is('agent', line.agent)
    && least('min_reward', line.reward, ROUNDING) && most('max_reward', line.reward, ROUNDING)
    && least('min_tool_calls', line.tool_calls) && most('max_tool_calls', line.tool_calls);
}
