/** From numbers to places on a drawing, and the round numbers beside it. */

/** @param {number} low @param {number} high @param {number} from @param {number} to */
export function scale(low, high, from, to) {
  const span = high - low || 1;
  return (value) => from + ((value - low) / span) * (to - from);
}

/** About `most` round numbers between two; whole ones where only those make sense. */
export function ticks(low, high, most = 5, wholes = false) {
  const span = high - low;
  if (!(span > 0)) return [low];
  const rough = span / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  let step = power * ([1, 2, 5].find((times) => times * power >= rough) ?? 10);
  if (wholes) step = Math.max(1, Math.round(step));
  const first = Math.ceil(low / step - 1e-9);
  const made = [];
  for (let i = first; i * step <= high + step * 1e-9; i += 1) made.push(Number((i * step).toPrecision(12)));
  return made;
}
