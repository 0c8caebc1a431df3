/** Names of the list's columns, expressions and their completion, as pure functions. */
const SAME = 5.1e-10;

/** The expression for a bar of a histogram. Bars of one value stand for all that agree to nine decimals; the others do not include their
 * upper end, except the last. @param {string} name @param {{low: number, high: number}} bar @param {boolean} isLast */
export function barCondition(name, { low, high }, isLast) {
  if (low === high) return `${name} >= ${low - SAME} and ${name} <= ${high + SAME}`;
  return `${name} >= ${low} and ${name} ${isLast ? '<=' : '<'} ${high}`;
}

/** The columns of a list without `columns` in its address. `(prompt)` and `(verdict)` are explained in the docs. */
export const DEFAULT_COLUMNS = ['repeat', 'success', 'reward', '(prompt)', '(verdict)', 'tool_calls', 'turns', 'output_tokens', 'seconds', 'end'];

/** The names in a list of columns; commas in quoted keys separate nothing. @param {string | null} text @returns {string[]} */
export function parseColumns(text) {
  const names = (text ?? '').match(/(?:[^,"]|"(?:[^"\\]|\\.)*"?)+/g) ?? [];
  const found = [...new Set(names.map((name) => name.trim()).filter(Boolean))];
  return found.length ? found : DEFAULT_COLUMNS;
}

/** The value of `columns` in the address, or null for the default. @param {string[]} names */
export function formatColumns(names) {
  const text = names.join(',');
  return names.length === 0 || text === DEFAULT_COLUMNS.join(',') ? null : text;
}

/** The columns to show, in order: names of columns that every line has, and heads of the page with their position in its cells.
 * @param {string[]} names @param {{path: string, label: string, role: string | null}[]} heads @param {Set<string>} known */
export function shownColumns(names, heads, known) {
  const rest = new Map(heads.map((head, at) => [head.path, { ...head, at }]));
  const shown = [];
  for (const name of names) {
    if (known.has(name)) shown.push({ name });
    else if (name === '(verdict)') {
      for (const head of [...rest.values()].filter((one) => one.role && !names.includes(one.path))) {
        shown.push({ head });
        rest.delete(head.path);
      }
    } else if (rest.has(name)) {
      shown.push({ head: rest.get(name) });
      rest.delete(name);
    }
  }
  const isDefault = names === DEFAULT_COLUMNS;
  return isDefault ? shown : [...shown, ...[...rest.values()].filter((head) => !head.role && head.path !== '(prompt)').map((head) => ({ head }))];
}

/** A short text for a value of a row. @param {unknown} value */
export function valueText(value) {
  if (value === null || value === undefined) return '';
  if (typeof value === 'boolean') return value ? 'yes' : 'no';
  if (Array.isArray(value) && value.length > 0 && value.every((one) => typeof one === 'boolean')) {
    return `${value.filter(Boolean).length} of ${value.length}`;
  }
  if (Array.isArray(value) && value.length > 0 && value.every((one) => typeof one === 'string')) return value.join(', ');
  return typeof value === 'string' ? value : JSON.stringify(value);
}

/** Two expressions joined by `and`. @param {string | null} first @param {string} second */
export function joined(first, second) {
  if (!first) return second;
  const grouped = (text) => (/\b(or|not|if)\b/.test(text) ? `(${text})` : text);
  return `${grouped(first)} and ${grouped(second)}`;
}

/** What an expression may continue with: the text with its last name completed. @param {string} text @param {string[]} keys */
export function completions(text, keys, most = 12) {
  const start = (text.match(/[A-Za-z_][\w.]*$/) ?? [''])[0];
  if (!start) return [];
  const before = text.slice(0, text.length - start.length);
  const isInString = (before.match(/"/g) ?? []).length % 2 === 1;
  if (isInString) return [];
  const lower = start.toLowerCase();
  const rank = (key) => (key.toLowerCase().startsWith(lower) ? 0 : 1);
  return keys.filter((key) => key.toLowerCase().includes(lower) && key !== start)
    .sort((a, b) => rank(a) - rank(b)).slice(0, most).map((key) => before + key);
}
