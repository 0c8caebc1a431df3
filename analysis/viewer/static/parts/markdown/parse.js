/**
 * Finds the Markdown in a text without changing it: a tree whose texts, joined, are the text. It takes time in proportion to the
 * length, also for marks without an end.
 */
import { segments } from './segments.js';

/** @typedef {{kind: string, children: (Part | string)[], language?: string, pad?: number}} Part */

const RULE = /^ {0,3}([-*_])(?:[ \t]*\1){2,}\s*$/;
const HEADING = /^ {0,3}(#{1,6})[ \t]/;
const QUOTE = /^(?:[ \t]{0,3}>[ \t]?)+/;
const ITEM = /^[ \t]*(?:[-*+]|\d{1,9}[.)])[ \t]/;
/** Marks within a line: escapes, TeX's brackets, addresses, and the rest. */
const MARKS = /\\[!-/:-@[-_{-~]|https?:\/\/[^\s<>"'`)\]]+|`+|\*+|_+|~+|\$+/g;
const ENDS = { $: '$', $$: '$', '\\(': '\\)', '\\[': '\\]' };
const EMPHASIS = { '*': 'em', _: 'em', '**': 'strong', __: 'strong', '***': 'both', ___: 'both', '~~': 'del' };
const WORD = /[\p{L}\p{N}]/u;
const MAX_FORMULA = 2000;
const MAX_DEPTH = 8;
/** Columns of a table are not aligned beyond this width, which is that of a long text in one cell. */
const MAX_COLUMN = 40;

/** @param {string} text @param {string} fence the fence of the code in which the text begins; '' for none @returns {(Part | string)[]} */
export function parse(text, fence = '') {
  return segments(text, fence).flatMap((segment, i) => (i ? ['\n', partsOf(segment)] : [partsOf(segment)])).flat();
}

/** The text that was parsed. @param {(Part | string)[]} parts @returns {string} */
export function textOf(parts) {
  return parts.map((one) => (typeof one === 'string' ? one : textOf(one.children))).join('');
}

function part(kind, ...children) {
  return { kind, children: children.flat().filter((child) => child !== '') };
}

function partsOf({ kind, text, language, body }) {
  if (kind === 'grid') return [part('grid', text)];
  if (kind === 'table') return [table(text.split('\n'))];
  if (kind === 'prose') return prose(text);
  const [from, to] = body;
  const inside = { ...part(kind === 'math' ? 'formula' : 'program', text.slice(from, to)), language };
  return [part(kind === 'math' ? 'formulas' : 'block', part('syntax', text.slice(0, from)), inside, part('syntax', text.slice(to)))];
}

/** Paragraphs, headings, rules, and lines of quotes and lists. Emphasis ends at the latest where one of them does. */
function prose(text) {
  const found = [];
  let paragraph = '';
  const flush = () => {
    found.push(inline(paragraph));
    paragraph = '';
  };
  for (const line of text.split(/(?<=\n)/)) {
    const heading = HEADING.exec(line);
    const quote = QUOTE.exec(line)?.[0] ?? '';
    const item = ITEM.exec(line.slice(quote.length))?.[0] ?? '';
    const head = heading?.[0] ?? quote + item;
    if (head || !line.trim() || RULE.test(line)) flush();
    if (RULE.test(line)) found.push(part('syntax', line));
    else if (heading) found.push(part(`heading level${heading[1].length}`, part('syntax', head), inline(line.slice(head.length))));
    else if (quote) found.push(part('quote', part('syntax', head), inline(line.slice(head.length))));
    else {
      if (head) found.push(part('syntax', head));
      paragraph += line.slice(head.length);
    }
  }
  flush();
  return found.flat();
}

/** Rows with their cells in columns, as if spaces had been added. */
function table(lines) {
  const rows = lines.map((line) => line.split(/((?<!\\)\|)/)); // cells and bars, alternating
  const widths = [];
  for (const row of rows) {
    row.forEach((cell, i) => { widths[i] = Math.min(MAX_COLUMN, Math.max(widths[i] ?? 0, [...cell.slice(0, MAX_COLUMN)].length)); });
  }
  const isRight = rows[1].map((cell) => /-:\s*$/.test(cell));
  const cells = (row, y) => row.map((cell, i) => {
    if (i % 2) return part('syntax', cell);
    const pad = i + 1 < row.length ? widths[i] - [...cell.slice(0, MAX_COLUMN)].length : 0;
    const kind = `cell${isRight[i] ? ' right' : ''}${y === 0 ? ' head' : ''}`;
    return { ...part(kind, y === 1 ? part('syntax', cell) : inline(cell)), pad };
  });
  return part('table', rows.flatMap((row, y) => (y ? ['\n', cells(row, y)] : [cells(row, y)])).flat());
}

/** Emphasis, code, formulas and addresses. */
function inline(text) {
  const marks = [...text.matchAll(MARKS)].map((match) => ({ at: match.index, text: match[0], end: match.index + match[0].length }));
  const verbatim = verbatimParts(text, marks);
  const pairs = emphasisPairs(text, marks, verbatim);
  const root = [];
  const open = [{ children: root, last: -1 }];
  let at = 0;
  const push = (...parts) => open.at(-1).children.push(...parts.filter((one) => one !== ''));
  for (let i = 0; i < marks.length; i += 1) {
    const mark = marks[i];
    const before = text.slice(at, mark.at);
    if (verbatim.has(i)) {
      const { kind, last } = verbatim.get(i);
      const end = marks[last];
      push(before, last === i ? part(kind, mark.text) : part(kind, part('syntax', mark.text), text.slice(mark.end, end.at), part('syntax', end.text)));
      at = end.end;
      i = last;
    } else if (pairs.has(i) && open.length <= MAX_DEPTH) {
      const inside = part(EMPHASIS[mark.text], part('syntax', mark.text));
      push(before, inside);
      open.push({ children: inside.children, last: pairs.get(i) });
      at = mark.end;
    } else if (open.at(-1).last === i) {
      push(before, part('syntax', mark.text));
      open.pop();
      at = mark.end;
    }
  }
  push(text.slice(at));
  return root;
}

/** Where code, formulas and addresses begin, with the mark at which each ends. */
function verbatimParts(text, marks) {
  const ends = new Map(); // by mark, its places, and which of them is the next
  marks.forEach((mark, i) => {
    const key = mark.text[0] === '$' ? '$' : mark.text; // of dollars, the next ones, as many or not
    if (!ends.has(key)) ends.set(key, { places: [], next: 0 });
    ends.get(key).places.push(i);
  });
  const found = new Map();
  for (let i = 0; i < marks.length; i += 1) {
    const mark = marks[i];
    const isCode = mark.text.startsWith('`');
    if (mark.text.startsWith('http')) found.set(i, { kind: 'address', last: i });
    const end = ends.get(isCode ? mark.text : ENDS[mark.text]);
    if (!end) continue;
    while (end.places[end.next] <= i) end.next += 1;
    const last = end.places[end.next];
    if (last === undefined) continue;
    if (!isCode && !isFormula(text, mark, marks[last])) continue;
    found.set(i, { kind: isCode ? 'code' : 'formula', last });
    i = last;
  }
  return found;
}

/** Pandoc's rule for dollars, so that `$5 or $6` is not a formula. */
function isFormula(text, mark, last) {
  if (last.at - mark.end > MAX_FORMULA || (mark.text[0] === '$' && last.text !== mark.text)) return false;
  const inside = text.slice(mark.end, last.at);
  return mark.text !== '$' || (isBlack(inside[0]) && isBlack(inside.at(-1)) && !inside.includes('\n') && !/\d/.test(text[last.end] ?? ''));
}

/** Where emphasis begins, with the mark at which it ends. No two overlap in part. */
function emphasisPairs(text, marks, verbatim) {
  const found = new Map();
  const open = []; // places of marks that can begin emphasis
  const byMark = new Map(); // by mark, the depths at which `open` has it
  for (let i = 0; i < marks.length; i += 1) {
    const mark = marks[i];
    if (verbatim.has(i)) i = verbatim.get(i).last;
    else if (EMPHASIS[mark.text]) {
      const [before, after] = [text[mark.at - 1], text[mark.end]];
      const inWord = mark.text === '*' || mark.text[0] === '_' ? [before, after].map((one) => WORD.test(one ?? '')) : [false, false];
      const depths = byMark.get(mark.text) ?? [];
      byMark.set(mark.text, depths);
      while (depths.length && (depths.at(-1) >= open.length || marks[open[depths.at(-1)]].text !== mark.text)) depths.pop();
      if (depths.length && isBlack(before) && !inWord[1]) {
        const depth = depths.pop();
        found.set(open[depth], i);
        open.length = depth;
      } else if (isBlack(after) && !inWord[0]) {
        depths.push(open.length);
        open.push(i);
      }
    }
  }
  return found;
}

/** @param {string | undefined} letter */
function isBlack(letter) {
  return letter !== undefined && letter.trim() !== '';
}
