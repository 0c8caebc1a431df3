/** Formats numbers. Missing values are shown as a dash. */
const DASH = '–';
/** Smaller numbers are rounding errors of zero, such as 0.1 + 0.2 - 0.3. */
const ROUNDING = 1e-12;
const integers = new Intl.NumberFormat('en');
const compactNumbers = new Intl.NumberFormat('en', { notation: 'compact', maximumSignificantDigits: 4 });

export const count = (n) => (n === null || n === undefined ? DASH : integers.format(n));

/** A short form: 1,234,567 is 1.235M. @param {number} n */
export const compact = (n) => (Math.abs(n) < 10_000 ? plain(n) : compactNumbers.format(n).replace('-', '−'));

export const pluralize = (n, noun) => `${count(n)} ${noun}${n === 1 ? '' : 's'}`;

export function percent(share, digits = 1) {
  return share === null || share === undefined ? DASH : `${(share * 100).toFixed(digits)}%`;
}

/** A reward or another number: four significant digits, no trailing zeros. @param {number | null | undefined} value */
export function plain(value) {
  if (value === null || value === undefined) return DASH;
  const size = Math.abs(value);
  if (size < ROUNDING) return '0';
  if (size >= 1e7 && size < 1e15) return compact(value);
  if (size >= 1e15 || size < 1e-4) return value.toExponential(2).replace('-', '−').replace('e−', 'e-');
  const digits = Math.max(0, Math.min(6, 3 - Math.floor(Math.log10(size))));
  return rounded(value, digits).replace('-', '−');
}

const rounded = (value, digits) => new Intl.NumberFormat('en', { maximumFractionDigits: Math.min(digits, 4) }).format(value);

/** All digits of a number that is compared with another one, for which rounded numbers may look the same. @param {number} value */
export const exact = (value) => String(value).replace(/^-/, '−');

/** A number with its sign. @param {number | null | undefined} value */
export function signed(value) {
  return value === null || value === undefined ? DASH : `${value >= ROUNDING ? '+' : ''}${plain(value)}`;
}

/** A difference of shares in percentage points. @param {number | null | undefined} share */
export function points(share) {
  return share === null || share === undefined ? DASH : `${signed(Number((share * 100).toFixed(2)))} points`;
}

export function seconds(s) {
  if (s === null || s === undefined) return DASH;
  if (s < 0.9995) return `${plain(Number((s * 1000).toPrecision(3)))} ms`;
  if (s < 120) return `${s.toFixed(s < 10 ? 2 : 1)} s`;
  if (s < 7200) return `${Math.floor(s / 60)} min ${Math.round(s % 60)} s`;
  return `${Math.floor(s / 3600)} h ${Math.round((s % 3600) / 60)} min`;
}

export function bytes(n) {
  if (n < 1000) return `${n} B`;
  const step = Math.min(4, Math.floor(Math.log10(n) / 3));
  return `${(n / 1000 ** step).toFixed(1)} ${' kMGT'[step]}B`;
}

/** The 95 % interval of an estimate, or ''. @param {{low: number | null, high: number | null} | null} estimate
 * @param {(value: number) => string} format */
export function interval(estimate, format) {
  if (!estimate || estimate.low === null || estimate.high === null) return '';
  return `95% interval ${format(estimate.low)} to ${format(estimate.high)}`;
}

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
