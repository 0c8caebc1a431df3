/** Finds the Markdown in a text without changing it: a tree whose texts, joined, are the text. It takes time in proportion to the length,
 * also for marks without an end. */
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

export function parse(text, fence = '') {
  return segments(text, fence).flatMap((segment, i) => (i ? ['\n', partsOf(segment)] : [partsOf(segment)])).flat();
}

/** The text that was parsed. @param {(Part | string)[]} parts @returns {string} */
export const textOf = (parts) => parts.map((one) => (typeof one === 'string' ? one : textOf(one.children))).join('');

const part = (kind, ...children) => ({ kind, children: children.flat().filter((child) => child !== '') });

/** @param {Segment} segment */
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

const isBlack = (letter) => letter !== undefined && letter.trim() !== '';

/** `body`: where code or a formula begins and ends within its text.
 * @typedef {{kind: 'prose' | 'table' | 'grid' | 'code' | 'math', text: string, language?: string, body?: [number, number]}} Segment */

const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([\w+#.-]*)[^`]*$/;
const DELIMITER_ROW = /^[ \t]*\|?[ \t]*:?-+:?[ \t]*(\|[ \t]*:?-+:?[ \t]*)*\|?\s*$/;
const ENVIRONMENT = /^\\begin\{((?:align|alignat|aligned|equation|gather|gathered|cases|array|[bpvBV]?matrix)\*?)\}/;
const MARKUP = /^\s*(?:(?:\d{1,3}[.)]|[-*+])\s+)?(?:\$[^$]+\$|\\\(.+\\\)|\*\*[^*]+\*\*)[\s.,;]*$/;
/** Longer formulas are hardly formulas; the search for their end must not read the whole text for every `$$`. */
const MAX_MATH_LINES = 60;

/** The segments of a text, in order. Joined by line breaks, they are the text. @param {string} text
 * @param {string} fence the fence of the code in which the text begins; '' for none @returns {Segment[]} */
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
    found.push(/** @type {Segment} */ (special.segment));
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
    /** @type {Segment | null} */
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
const isMarkup = (text) => text.split('\n').every((line) => MARKUP.test(line));

const cells = (row) => row.trim().replace(/^\||\|$/g, '').split('|').length;

const LETTERS = /\p{L}{3}/u;

/** Whether a line could belong to a drawing: at least two symbols and no word. @param {string} line */
const isDrawing = (line) => line.replace(/\s/g, '').length > 1 && !LETTERS.test(line);

/** Whether a line looks like a row of cells written without gaps, such as `SFFF`. @param {string} line */
const isCellRow = (line) => line.length > 2 && !/[\s\p{Ll}]/u.test(line);

/** Successive lines of the same kind. A drawing has at least two lines: lines without words, or rows of cells of one length.
 * @param {string} text @returns {{text: string, grid: boolean}[]} */
export function pieces(text) {
  const all = text.split('\n');
  const lines = all.map((line) => line.trimEnd());
  const sameLength = (i, j) => lines[j] !== undefined && lines[i].length === lines[j].length && isCellRow(lines[i]) && isCellRow(lines[j]);
  const inGrid = lines.map((line, i) => isDrawing(line) || sameLength(i, i - 1) || sameLength(i, i + 1));
  /** @type {{text: string, grid: boolean}[]} */
  const groups = [];
  all.forEach((line, i) => {
    const grid = inGrid[i] && Boolean(inGrid[i - 1] || inGrid[i + 1]);
    const last = groups.at(-1);
    if (last?.grid === grid) last.text += `\n${line}`;
    else groups.push({ text: line, grid });
  });
  return groups;
}
