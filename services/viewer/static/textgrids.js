/** Finds boards and tables within prose, which only line up in a monospaced font. */

const LETTERS = /\p{L}{3}/u;

/** Whether a line could belong to a drawing: at least two symbols and no word. @param {string} line */
function drawn(line) {
  return line.replace(/\s/g, '').length > 1 && !LETTERS.test(line);
}

/** Whether a line looks like a row of cells written without gaps, such as `SFFF`. @param {string} line */
function cells(line) {
  return line.length > 2 && !/[\s\p{Ll}]/u.test(line);
}

/**
 * Successive lines of the same kind. A drawing has at least two lines: lines without words, or rows of cells of one length.
 * @param {string} text
 * @returns {{text: string, grid: boolean}[]}
 */
export function pieces(text) {
  const lines = text.split('\n');
  const alike = (i, j) => lines[j] !== undefined && lines[i].length === lines[j].length && cells(lines[i]) && cells(lines[j]);
  const row = lines.map((line, i) => drawn(line) || alike(i, i - 1) || alike(i, i + 1));
  /** @type {{text: string, grid: boolean}[]} */
  const found = [];
  lines.forEach((line, i) => {
    const grid = row[i] && Boolean(row[i - 1] || row[i + 1]);
    const last = found.at(-1);
    if (last?.grid === grid) last.text += `\n${line}`;
    else found.push({ text: line, grid });
  });
  return found;
}
