/** The difference of two texts, word by word. No DOM, so that Node can test it. */
import { parseObject } from './parsed.js';

const WORDS = /\s+|[\p{L}\p{N}_]+|[^\s\p{L}\p{N}_]/gu;
const MOST_CELLS = 1_000_000;

/**
 * The pieces of both texts in order. `kind` is same, first (only in the first text) or second.
 * @param {string} first @param {string} second @returns {{kind: string, text: string}[]}
 */
export function wordDiff(first, second) {
  if (first === second) return first ? [{ kind: 'same', text: first }] : [];
  const [a, b] = [first.match(WORDS) ?? [], second.match(WORDS) ?? []];
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start += 1;
  let end = 0;
  while (end < a.length - start && end < b.length - start && a.at(-1 - end) === b.at(-1 - end)) end += 1;
  const [left, right] = [a.slice(start, a.length - end), b.slice(start, b.length - end)];
  const middle = left.length * right.length > MOST_CELLS
    ? [...left.map((text) => ['first', text]), ...right.map((text) => ['second', text])] // too long to search for common words
    : common(left, right);
  const same = (words) => words.map((text) => ['same', text]);
  return merged([...same(a.slice(0, start)), ...middle, ...same(a.slice(a.length - end))]);
}

/** The words of both lists, with a longest common subsequence marked as the same. */
function common(a, b) {
  const wide = b.length + 1;
  const length = new Uint32Array((a.length + 1) * wide);
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      length[i * wide + j] = a[i] === b[j] ? 1 + length[(i + 1) * wide + j + 1] : Math.max(length[(i + 1) * wide + j], length[i * wide + j + 1]);
    }
  }
  const found = [];
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      found.push(['same', a[i]]);
      [i, j] = [i + 1, j + 1];
    } else if (i < a.length && (j === b.length || length[(i + 1) * wide + j] >= length[i * wide + j + 1])) {
      found.push(['first', a[i]]);
      i += 1;
    } else {
      found.push(['second', b[j]]);
      j += 1;
    }
  }
  return found;
}

function merged(pieces) {
  const found = [];
  for (const [kind, text] of pieces) {
    if (found.at(-1)?.kind === kind) found.at(-1).text += text;
    else found.push({ kind, text });
  }
  return found;
}

export function readable(text) {
  const fields = parseObject(text);
  if (!fields) return text;
  return Object.entries(fields).map(([key, value]) => {
    const shown = typeof value === 'string' ? value : JSON.stringify(value);
    return shown.includes('\n') ? `${key}:\n${shown}` : `${key}: ${shown}`;
  }).join('\n');
}
