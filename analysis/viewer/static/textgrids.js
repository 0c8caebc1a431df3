/** Finds boards and tables within prose, which only line up in a monospaced font. */
const LETTERS = /\p{L}{3}/u;

/** Whether a line could belong to a drawing: at least two symbols and no word. @param {string} line */
function isDrawing(line) {
  return line.replace(/\s/g, '').length > 1 && !LETTERS.test(line);
}

/** Whether a line looks like a row of cells written without gaps, such as `SFFF`. @param {string} line */
function isCellRow(line) {
  return line.length > 2 && !/[\s\p{Ll}]/u.test(line);
}

/**
 * Successive lines of the same kind. A drawing has at least two lines: lines without words, or rows of cells of one length.
 * @param {string} text
 * @returns {{text: string, grid: boolean}[]}
 */
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
