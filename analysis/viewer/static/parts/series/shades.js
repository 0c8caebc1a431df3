/** The shades of the heat map. No DOM, so that Node can test it. */

export const SHADES = 11;

/** The shade of a value from 0 to 10 between the lowest and the highest value. @param {number} value @param {number} low @param {number} high */
export function shadeOf(value, low, high) {
  const part = high > low ? (value - low) / (high - low) : 0.5;
  return Math.max(0, Math.min(SHADES - 1, Math.round(part * (SHADES - 1))));
}

/** The next cell in a direction that has a link, or null. @param {boolean[][]} cells @param {[number, number]} at @param {[number, number]} step */
export function nextCell(cells, [row, column], [down, right]) {
  let [i, j] = [row + down, column + right];
  while (i >= 0 && i < cells.length && j >= 0 && j < cells[i].length) {
    if (cells[i][j]) return [i, j];
    i += down;
    j += right;
  }
  return null;
}
