/** Finds a text within another one, ignoring case. */

/**
 * The positions of the first `most` matches.
 * @param {string} text
 * @param {string} query
 * @returns {number[]}
 */
export function matchPositions(text, query, most = Infinity) {
  const [whole, part] = comparable(text, query);
  const found = [];
  for (let at = part ? whole.indexOf(part) : -1; at >= 0 && found.length < most; at = whole.indexOf(part, at + part.length)) found.push(at);
  return found;
}

/** The position of the last match, or -1. @param {string} text @param {string} query */
export function lastMatch(text, query) {
  const [whole, part] = comparable(text, query);
  return part ? whole.lastIndexOf(part) : -1;
}

/** Both texts in lower case, unless that would move positions, as with the Turkish dotted I. */
function comparable(text, query) {
  const whole = text.toLowerCase();
  const part = query.toLowerCase();
  return whole.length === text.length && part.length === query.length ? [whole, part] : [text, query];
}
