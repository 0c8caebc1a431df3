/** Classes of tokens by their probability. */

/** The lower log-probability bound of each class. Less likely tokens also have a stronger underline. */
export const CLASSES = [
  { name: 'sure', from: Math.log(0.9), label: 'over 90%' },
  { name: 'likely', from: Math.log(0.5), label: '50 to 90%' },
  { name: 'open', from: Math.log(0.1), label: '10 to 50%' },
  { name: 'unlikely', from: Math.log(0.01), label: '1 to 10%' },
  { name: 'rare', from: -Infinity, label: 'under 1%' },
];

/** @param {number | undefined} logProb */
export function classOf(logProb) {
  if (typeof logProb !== 'number' || Number.isNaN(logProb)) return 'unknown';
  return CLASSES.find((one) => logProb >= one.from).name;
}
