/** Parses Markdown with formulas into a tree. The tree is data; nothing becomes HTML. */
import { Marked } from '../../vendor/marked.js';

/** The parser's time can grow with the square of a paragraph's length, and it recurses into nested quotes and lists. */
const MAX_PARAGRAPH = 6000;
const NESTED = /^[ \t]*(?:>[ \t]*|[*+-][ \t]+|\d{1,9}[.)][ \t]+){16}/m;

/** Pandoc's rule for dollars, so that `$5 or $6` is not a formula; and TeX's own brackets. */
const INLINE = /^\$(?![\s$])((?:\\[\s\S]|[^\\$\n]){0,1000}?[^\s\\$]|\S)\$(?!\d)|^\\\(([\s\S]{1,1000}?)\\\)/;
const DISPLAY = /^\$\$([^$]{1,2000}?)\$\$|^\\\[([\s\S]{1,2000}?)\\\]/;

const formula = {
  name: 'formula',
  level: /** @type {const} */ ('inline'),
  start: (source) => {
    const found = source.search(/\$|\\\(|\\\[/);
    return found < 0 ? undefined : found;
  },
  tokenizer: (source) => {
    const display = DISPLAY.exec(source);
    const match = display ?? INLINE.exec(source);
    return match ? { type: 'formula', raw: match[0], text: (match[1] ?? match[2]).trim(), display: Boolean(display) } : undefined;
  },
};
const parser = new Marked({ gfm: true, breaks: true, extensions: [formula] });

/** The tree of a Markdown text; null if it would take too long to parse. @param {string} text @returns {any[] | null} */
export function parseMarkdown(text) {
  if (NESTED.test(text) || longestParagraph(text) > MAX_PARAGRAPH) return null;
  try {
    return parser.lexer(text);
  } catch {
    return null; // a RangeError: nested too deeply
  }
}

function longestParagraph(text) {
  return Math.max(...text.split(/\n[ \t]*\n/).map((paragraph) => paragraph.length));
}
