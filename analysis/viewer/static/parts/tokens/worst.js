/** The least likely tokens of a rollout. Without DOM. */

/** @typedef {{call: number, position: number, event: number, turn: number, logProb: number, id: number | null, text: string, before: string, after: string, tops: [string, number][]}} Worst */

const BEFORE = 40; // characters of the context
const AFTER = 20;

/** The events that end a model call with recorded tokens, with the call's number. @param {any[]} events */
export function tokenCalls(events) {
  const found = [];
  events.forEach((event, index) => {
    if (event.tokens) found.push({ call: found.length, index, event });
  });
  return found;
}

/**
 * The least likely generated tokens, least likely first, with the text around them.
 * @param {any[]} events
 * @param {number} most
 * @returns {Worst[]}
 */
export function leastLikely(events, most) {
  const all = tokenCalls(events).flatMap(({ call, index, event }) => {
    const { tokens } = event;
    const count = Math.max(tokens.generated.length, tokens.texts.length);
    return tokens.log_probs.length === count
      ? tokens.log_probs.map((logProb, position) => ({ call, position, event: index, turn: event.turn, logProb, tokens }))
      : [];
  });
  all.sort((a, b) => a.logProb - b.logProb || a.call - b.call || a.position - b.position);
  return all.slice(0, most).map(({ tokens, ...one }) => ({ ...one, ...context(tokens, one.position) }));
}

/** The text of a token and around it. A token that contains a part of a character has the text of the character. */
function context({ texts, generated, alternatives }, position) {
  const end = texts.findIndex((text, i) => i >= position && text !== '');
  const last = end < 0 ? position : end;
  let first = position;
  while (first > 0 && texts[first - 1] === '') first -= 1;
  const before = tail(texts.slice(0, first).join(''), BEFORE);
  return {
    id: generated[position] ?? null,
    text: texts[last] ?? '',
    before,
    after: head(texts.slice(last + 1, last + 1 + AFTER).join(''), AFTER),
    tops: alternatives[position] ?? [],
  };
}

function tail(text, most) {
  return text.length > most ? `…${[...text.slice(-most)].join('')}` : text;
}

function head(text, most) {
  return text.length > most ? `${text.slice(0, most)}…` : text;
}

/**
 * Where a token is in the conversation: the event and the index of its piece, or null if it has no text there.
 * @param {any[]} events
 * @param {(import('../rollout/tokenpieces.js').Piece[] | null)[]} pieces those of all events
 * @param {number} call @param {number} position
 */
export function placeOf(events, pieces, call, position) {
  const calls = tokenCalls(events);
  if (!calls[call]) return null;
  let best = null;
  for (let event = (calls[call - 1]?.index ?? -1) + 1; event <= calls[call].index; event += 1) {
    (pieces[event] ?? []).forEach((piece, index) => {
      if (piece.first <= position && (!best || piece.first >= best.first)) best = { event, piece: index, first: piece.first };
    });
  }
  return best ? { event: best.event, piece: best.piece } : { event: calls[call].index, piece: -1 };
}

/** The call and the position in an address, such as `3.17`, or null. @param {string | null} text */
export function parseToken(text) {
  const found = /^(\d{1,9})\.(\d{1,9})$/.exec(text ?? '');
  return found ? { call: Number(found[1]), position: Number(found[2]) } : null;
}
