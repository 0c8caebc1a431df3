/** Finds a text within another one, ignoring case. */
/** The positions of the first `most` matches. @param {string} text @param {string} query @returns {number[]} */
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

const BEFORE = 60;
const AFTER = 140;
const LONGEST = 200;

/** The first event that contains the text, with some text around it; null if no event does. @param {any[]} events @param {string} text */
export function snippetOf(events, text) {
  const found = events.map((event, index) => ({ event, index, at: matchPositions(event.text, text, 1)[0] ?? -1 })).filter((one) => one.at >= 0);
  if (!found.length) return null;
  const [{ event, index, at }] = found;
  const start = Math.max(0, at - BEFORE);
  const end = at + Math.min(text.length, LONGEST);
  const line = (part) => part.replace(/\s+/g, ' ');
  return {
    event: index, turn: event.turn, place: event.speaker, name: event.name || calledBy(events, event), others: found.length - 1,
    before: (start ? '…' : '') + line(event.text.slice(start, at)), match: line(event.text.slice(at, end)),
    after: line(event.text.slice(end, end + AFTER)) + (end + AFTER < event.text.length ? '…' : ''),
  };
}

function calledBy(events, event) {
  return events.find((one) => event.speaker === 'result' && one.speaker === 'call' && one.call === event.call)?.name ?? '';
}

/** Where the match is, for a reader: `turn 3, result of step`. @param {any} snippet */
export function placeOf(snippet) {
  const { event, turn, place, name, others } = snippet;
  if (event === null) return `in the field ${place}`;
  const what = place === 'result' && name ? `result of ${name}` : place === 'call' ? `call of ${name}` : place === 'other' ? 'other' : place;
  return `${turn > 0 ? `turn ${turn}` : 'prompt'}, ${what}${others > 0 ? `, and ${others} more` : ''}`;
}
