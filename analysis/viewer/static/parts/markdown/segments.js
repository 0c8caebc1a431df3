/** Splits a message into prose, tables, code, display formulas, and boards, which must not be parsed as Markdown. */
import { pieces } from '../../textgrids.js';

/** `body`: where code or a formula begins and ends within its text. @typedef {{kind: 'prose' | 'table' | 'grid' | 'code' | 'math', text: string, language?: string,
 * body?: [number, number]}} Segment */

const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([\w+#.-]*)[^`]*$/;
const DELIMITER_ROW = /^[ \t]*\|?[ \t]*:?-+:?[ \t]*(\|[ \t]*:?-+:?[ \t]*)*\|?\s*$/;
const ENVIRONMENT = /^\\begin\{((?:align|alignat|aligned|equation|gather|gathered|cases|array|[bpvBV]?matrix)\*?)\}/;
const MARKUP = /^\s*(?:(?:\d{1,3}[.)]|[-*+])\s+)?(?:\$[^$]+\$|\\\(.+\\\)|\*\*[^*]+\*\*)[\s.,;]*$/;
/** Longer formulas are hardly formulas; the search for their end must not read the whole text for every `$$`. */
const MAX_MATH_LINES = 60;

/**
 * The segments of a text, in order. Joined by line breaks, they are the text.
 * @param {string} text
 * @param {string} fence the fence of the code in which the text begins; '' for none
 * @returns {Segment[]}
 */
export function segments(text, fence = '') {
  const lines = text.split('\n');
  /** @type {Segment[]} */
  const found = [];
  let open = 0; // the first line that belongs to no segment yet
  let at = 0;
  const flush = () => {
    if (open < at) found.push(...withoutGrids(lines.slice(open, at)));
  };
  while (at < lines.length) {
    const special = (at === 0 && fence ? code(lines, -1, fence) : code(lines, at)) ?? math(lines, at);
    if (!special) {
      at += 1;
      continue;
    }
    flush();
    found.push(special.segment);
    at = special.end;
    open = at;
  }
  flush();
  return found;
}

/** The fenced code that starts at a line, or null. Without a closing fence, it extends to the end of the text. */
function code(lines, at, opening = lines[at]) {
  const fence = FENCE.exec(opening);
  if (!fence) return null;
  const [, mark, language] = fence;
  const closes = (line) => line.trim().startsWith(mark) && line.trim().split(mark[0]).join('') === '';
  let end = at + 1;
  while (end < lines.length && !closes(lines[end])) end += 1;
  const text = lines.slice(Math.max(at, 0), end + 1).join('\n');
  const from = at < 0 ? 0 : Math.min(lines[at].length + 1, text.length);
  const to = Math.max(from, end < lines.length ? text.length - lines[end].length - 1 : text.length);
  return { segment: { kind: 'code', text, language: language.toLowerCase(), body: [from, to] }, end: end + 1 };
}

/** The fence of the code in which a text ends, with its line break; '' if it ends in prose. @param {string} text */
export function openFence(text) {
  const lines = text.split('\n');
  let at = 0;
  while (at < lines.length) {
    const found = code(lines, at);
    if (found && found.end > lines.length) return `${lines[at]}\n`;
    at = found?.end ?? at + 1;
  }
  return '';
}

/** The display formula that starts at a line and has lines of its own, or null. */
function math(lines, at) {
  const [open, close] = delimiters(lines[at].trim());
  if (!open) return null;
  const last = Math.min(lines.length, at + MAX_MATH_LINES);
  for (let end = at; end < last; end += 1) {
    const line = lines[end].trim();
    const inside = end === at ? line.slice(open.length) : line;
    const isWhole = open.startsWith('\\begin') || inside.indexOf(close) === inside.length - close.length; // environments can be nested
    if (inside.endsWith(close) && isWhole) return { segment: formulaIn(lines.slice(at, end + 1).join('\n'), open, close), end: end + 1 };
    if (inside.includes(close) || !line) return null; // text follows the formula, or it does not end
  }
  return null;
}

/** @returns {[string, string]} */
function delimiters(line) {
  if (line.startsWith('$$')) return ['$$', '$$'];
  if (line.startsWith('\\[')) return ['\\[', '\\]'];
  const environment = ENVIRONMENT.exec(line);
  return environment ? [environment[0], `\\end{${environment[1]}}`] : ['', ''];
}

function formulaIn(text, open, close) {
  return { kind: 'math', text, body: [text.indexOf(open) + open.length, text.lastIndexOf(close)] };
}

/** Prose, tables and boards. The rows of a table belong together, although rows of numbers look like a board. */
function withoutGrids(lines) {
  /** @type {Segment[]} */
  const found = [];
  let chunk = [];
  const flush = () => {
    let last = null;
    for (const { text, grid } of chunk.length ? pieces(chunk.join('\n')) : []) {
      const kind = grid && !isMarkup(text) ? 'grid' : 'prose';
      if (last?.kind === 'prose' && kind === 'prose') last.text += `\n${text}`;
      else found.push(last = { kind, text });
    }
    chunk = [];
  };
  for (let at = 0; at < lines.length; at += 1) {
    const isTable = lines[at].includes('|') && at + 1 < lines.length && lines[at + 1].includes('-') && DELIMITER_ROW.test(lines[at + 1])
      && cells(lines[at]) === cells(lines[at + 1]);
    if (!isTable) {
      chunk.push(lines[at]);
      continue;
    }
    flush();
    let end = at + 2;
    while (end < lines.length && lines[end].includes('|')) end += 1;
    found.push({ kind: 'table', text: lines.slice(at, end).join('\n') });
    at = end - 1;
  }
  flush();
  return found;
}

/** Whether each line is a short formula, bold text or an item of a list, which have no words, either. @param {string} text */
function isMarkup(text) {
  return text.split('\n').every((line) => MARKUP.test(line));
}

function cells(row) {
  return row.trim().replace(/^\||\|$/g, '').split('|').length;
}
