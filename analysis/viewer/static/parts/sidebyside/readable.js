/** Text of a call or a result for reading: the fields of a JSON object on lines of their own, boards with their lines. */
import { parseObject } from '../rollout/parsed.js';

/** @param {string} text */
export function readable(text) {
  const fields = parseObject(text);
  if (!fields) return text;
  return Object.entries(fields).map(([key, value]) => {
    const shown = typeof value === 'string' ? value : JSON.stringify(value);
    return shown.includes('\n') ? `${key}:\n${shown}` : `${key}: ${shown}`;
  }).join('\n');
}
