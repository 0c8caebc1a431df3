/** Aligns the turns of two rollouts and finds where they diverge. No DOM, so that Node can test it. */
import { parseObject } from './parsed.js';

/** A turn: what the model wrote, and what it got. `first` and `last` are its calls' numbers over the whole episode.
 * @typedef {{turn: number, events: any[], actions: string, observations: string, words: string, names: string, last: number}} Turn
 * @typedef {{kind: string, left: Turn | null, right: Turn | null}} Row `kind`: one of KINDS */

/** The kinds of rows, and what they say about the two rollouts. */
export const KINDS = {
  same: 'same',
  wording: 'same calls, other words',
  observation: 'same call, different result',
  action: 'different action',
  'only-first': 'only in the first',
  'only-second': 'only in the second',
};

const MOST_CELLS = 4_000_000; // 2,000 turns on each side; longer episodes are aligned by their number
const SCORES = { same: 4, wording: 3.5, observation: 2 };
const SAME_TOOL = 0.5;
const GAP = -0.25;

/** The prompt of an episode and its turns. @param {any[]} events @returns {{prompt: any[], turns: Turn[]}} */
export function turnsOf(events) {
  const prompt = events.filter((event) => event.turn === 0);
  const groups = new Map();
  let calls = 0;
  for (const event of events) {
    if (event.turn === 0) continue;
    const group = groups.get(event.turn) ?? { turn: event.turn, events: [], last: calls - 1 };
    groups.set(event.turn, group);
    group.events.push(event);
    if (event.speaker === 'call') {
      group.last = calls;
      calls += 1;
    }
  }
  return { prompt, turns: [...groups.values()].map(described) };
}

function described(group) {
  const of = (speakers) => group.events.filter((event) => speakers.includes(event.speaker));
  const calls = of(['call']);
  // Without a call, the answer is what the model did.
  const actions = calls.length ? calls : of(['answer']);
  return {
    ...group,
    actions: JSON.stringify(actions.map((event) => [event.name, event.text.trim()])),
    observations: JSON.stringify([...resultsByCall(calls, of(['result'])), ...of(['user', 'other', 'system'])].map((event) => event.text)),
    words: JSON.stringify(of(calls.length ? ['reasoning', 'answer'] : ['reasoning']).map((event) => event.text)),
    names: calls.map((event) => event.name).join(' '),
  };
}

/** Results in the order of their calls: those of parallel calls arrive in any order. @param {any[]} calls @param {any[]} results */
export function resultsByCall(calls, results) {
  const order = new Map(calls.map((event, i) => [event.call, i]));
  const placeOf = (event) => order.get(event.call) ?? calls.length;
  return results.toSorted((a, b) => placeOf(a) - placeOf(b));
}

/** What two turns have in common, one of KINDS. @param {Turn} left @param {Turn} right */
function kindOf(left, right) {
  if (left.actions !== right.actions) return 'action';
  if (left.observations !== right.observations) return 'observation';
  return left.words === right.words ? 'same' : 'wording';
}

const score = (left, right) => (SCORES[kindOf(left, right)] ?? (left.names && left.names === right.names ? SAME_TOOL : 0));

/** The turns of both rollouts in rows: an alignment with the highest score (Needleman and Wunsch), in which turns with the same calls are
 * next to each other, even if one rollout made other calls in between. @param {Turn[]} left @param {Turn[]} right @returns {Row[]} */
export function align(left, right) {
  let start = 0;
  while (start < left.length && start < right.length && kindOf(left[start], right[start]) === 'same') start += 1;
  const rows = left.slice(0, start).map((turn, i) => rowOf(turn, right[i]));
  const [a, b] = [left.slice(start), right.slice(start)];
  if (a.length * b.length > MOST_CELLS) {
    const rest = Array.from({ length: Math.max(a.length, b.length) }, (_, i) => rowOf(a[i] ?? null, b[i] ?? null));
    return [...rows, ...rest];
  }
  return [...rows, ...aligned(a, b, score, GAP).map(([turn, other]) => rowOf(turn, other))];
}

function rowOf(left, right) {
  return { kind: left === null ? 'only-second' : right === null ? 'only-first' : kindOf(left, right), left, right };
}

/** The pairs of an alignment with the highest score, in which `gap` is that of an item without a partner. Early items match first. */
function aligned(a, b, score, gap) {
  const wide = b.length + 1;
  const best = new Float64Array((a.length + 1) * wide); // of the rest from (i, j) on
  for (let i = a.length; i >= 0; i -= 1) {
    for (let j = b.length; j >= 0; j -= 1) {
      if (i === a.length || j === b.length) best[i * wide + j] = gap * (a.length - i + b.length - j);
      else best[i * wide + j] = Math.max(score(a[i], b[j]) + best[(i + 1) * wide + j + 1], gap + best[(i + 1) * wide + j], gap + best[i * wide + j + 1]);
    }
  }
  const pairs = [];
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    const here = best[i * wide + j];
    const isPair = i < a.length && j < b.length && here === score(a[i], b[j]) + best[(i + 1) * wide + j + 1];
    const isFirst = isPair || (i < a.length && (j === b.length || here === gap + best[(i + 1) * wide + j]));
    const isSecond = isPair || !isFirst;
    pairs.push([isFirst ? a[i] : null, isSecond ? b[j] : null]);
    i += Number(isFirst);
    j += Number(isSecond);
  }
  return pairs;
}

/** The indexes of the rows that differ in more than words. @param {Row[]} rows @returns {number[]} */
export const divergences = (rows) => rows.flatMap((row, i) => (row.kind === 'same' || row.kind === 'wording' ? [] : [i]));

/** Whether two prompts have the same texts. @param {any[]} left @param {any[]} right */
export function samePrompt(left, right) {
  const text = (events) => JSON.stringify(events.map((event) => [event.speaker, event.text]));
  return text(left) === text(right);
}

/** Where two rollouts first diverge, as a sentence. @param {boolean} prompt whether the prompts are the same @param {Row[]} rows */
export function divergenceText(prompt, rows) {
  const start = prompt ? 'Same prompt' : 'The prompts differ';
  const first = divergences(rows)[0];
  if (first === undefined) {
    const words = rows.some((row) => row.kind === 'wording');
    return `${start}. All ${rows.length} turns have the same calls and results${words ? ', in other words' : ''}.`;
  }
  const { kind, left, right } = rows[first];
  const turn = (left ?? right).turn;
  const where = left && right && left.turn !== right.turn ? `turn ${left.turn} of the first and ${right.turn} of the second` : `turn ${turn}`;
  if (kind === 'observation') {
    const cause = prompt && left.turn === right.turn
      ? ' The environment is not deterministic, or it depends on something other than the prompt and the calls.'
      : '';
    return `${start}. In ${where}, the same call got different results.${cause}`;
  }
  if (kind === 'action') return `${start}. The first different action is in ${where}.`;
  return `${start}. Turn ${turn} is only in the ${kind === 'only-first' ? 'first' : 'second'} rollout.`;
}

/** For each row, the last call that each side has made by then, -1 before the first. @param {Row[]} rows @returns {[number, number][]} */
export function callsByRow(rows) {
  const reached = [-1, -1];
  return rows.map(({ left, right }) => {
    if (left) reached[0] = Math.max(reached[0], left.last);
    if (right) reached[1] = Math.max(reached[1], right.last);
    return [reached[0], reached[1]];
  });
}

/** The frame after a call: the last frame whose call is not a later one. @param {{event: number | null}[]} frames @param {number} call */
export function frameAfter(frames, call) {
  let found = 0;
  frames.forEach((frame, i) => {
    if (frame.event !== null && frame.event <= call) found = i;
  });
  return found;
}

const WORDS = /\s+|[\p{L}\p{N}_]+|[^\s\p{L}\p{N}_]/gu;
const MOST_WORD_CELLS = 1_000_000;

/** The pieces of both texts in order. `kind` is same, first (only in the first text) or second. @param {string} first
 * @param {string} second @returns {{kind: string, text: string}[]} */
export function wordDiff(first, second) {
  if (first === second) return first ? [{ kind: 'same', text: first }] : [];
  const [a, b] = [first.match(WORDS) ?? [], second.match(WORDS) ?? []];
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start += 1;
  let end = 0;
  while (end < a.length - start && end < b.length - start && a.at(-1 - end) === b.at(-1 - end)) end += 1;
  const [left, right] = [a.slice(start, a.length - end), b.slice(start, b.length - end)];
  const middle = left.length * right.length > MOST_WORD_CELLS
    ? [...left.map((text) => ['first', text]), ...right.map((text) => ['second', text])] // too long to search for common words
    : common(left, right);
  const same = (words) => words.map((text) => ['same', text]);
  return merged([...same(a.slice(0, start)), ...middle, ...same(a.slice(a.length - end))]);
}

/** The words of both lists, with a longest common subsequence marked as the same. */
function common(a, b) {
  const pairs = aligned(a, b, (first, second) => (first === second ? 1 : -Infinity), 0);
  return pairs.map(([first, second]) => (first === second ? ['same', first] : first === null ? ['second', second] : ['first', first]));
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
