/** Divides the tokens of a model call among the events of the conversation that it wrote. Without DOM. */
/** The start of an event's text, by which it is found among the tokens. */
const NEEDLE = 24;

/** @typedef {{text: string, logProb: number | undefined, ids: number[], first: number, tops: [string, number][]}} Piece */

/** The tokens that can be read as text. A character whose bytes are spread over several tokens is one piece: the tokens before its last one
 * have an empty text. Its log-probability is their sum.
 * @param {{texts: string[], log_probs: number[], generated: number[], alternatives?: [string, number][][]}} tokens @returns {Piece[]} */
export function piecesOf({ texts, log_probs: logProbs, generated, alternatives = [] }) {
  /** @type {Piece[]} */
  const pieces = [];
  let first = 0;
  texts.forEach((text, i) => {
    if (text === '' && i + 1 < texts.length) return;
    const range = logProbs.slice(first, i + 1);
    const logProb = range.length === i + 1 - first ? range.reduce((sum, value) => sum + value, 0) : undefined;
    pieces.push({ text: text || '\ufffd', logProb, ids: generated.slice(first, i + 1), first, tops: i === first ? (alternatives[i] ?? []) : [] });
    first = i + 1;
  });
  return pieces;
}

/** For each event, the pieces that it consists of. Markers between two events, such as `<tool_call>`, belong to the second. An event that
 * is not found among the tokens has none, and its tokens are those of the event before. @param {Piece[]} pieces
 * @param {{speaker: string, text: string, name: string}[]} events those of one model call @returns {Piece[][]} */
export function piecesByEvent(pieces, events) {
  const all = pieces.map((piece) => piece.text).join('');
  const ends = [];
  pieces.reduce((at, piece) => {
    ends.push(at + piece.text.length);
    return at + piece.text.length;
  }, 0);
  const starts = [0];
  let cursor = 0;
  let isEnd = false; // whether the last event that was found ends at the cursor
  events.forEach((event, i) => {
    const text = event.speaker === 'call' ? event.name : event.text.trim();
    const at = !text ? -1 : event.speaker === 'call' ? placeOfName(all, text, cursor) : all.indexOf(text.slice(0, NEEDLE), cursor);
    if (i > 0 && at < 0) starts.push(-1);
    else if (i > 0) starts.push(isEnd ? cursor : at);
    if (at < 0) return;
    const tail = text.slice(-NEEDLE);
    const last = all.startsWith(text, at) ? at + text.length - tail.length : all.indexOf(tail, at);
    isEnd = last >= 0 && event.speaker !== 'call';
    cursor = isEnd ? last + tail.length : at + 1;
  });
  const indexOf = (position) => {
    const found = ends.findIndex((one) => one > position);
    return found < 0 ? pieces.length : found;
  };
  const indexes = starts.map((start) => (start < 0 ? -1 : indexOf(start)));
  return events.map((_, i) => {
    if (indexes[i] < 0) return [];
    const next = indexes.slice(i + 1).find((index) => index >= 0) ?? pieces.length;
    return pieces.slice(indexes[i], next);
  });
}

/** Where a call's name is: where usual formats write it, because the arguments of the call before may contain it, else anywhere. */
function placeOfName(all, name, cursor) {
  const places = [`"name": "${name}"`, `"name":"${name}"`, `<function=${name}>`, name].map((text) => all.indexOf(text, cursor));
  return places.find((at) => at >= 0) ?? -1;
}

/** For each event of a conversation, its pieces; null where no text of tokens is recorded. @param {any[]} events @returns {(Piece[] | null)[]} */
export function piecesOfConversation(events) {
  const found = events.map(() => null);
  events.forEach((event, last) => {
    if (!event.tokens?.texts?.length) return;
    let start = last;
    const ofSameCall = (other) => other.turn === event.turn && !other.tokens && ['reasoning', 'answer', 'call'].includes(other.speaker);
    while (start > 0 && ofSameCall(events[start - 1])) start -= 1;
    piecesByEvent(piecesOf(event.tokens), events.slice(start, last + 1)).forEach((pieces, i) => {
      found[start + i] = pieces.length ? pieces : null;
    });
  });
  return found;
}

/** @typedef {{call: number, position: number, event: number, turn: number, logProb: number, id: number | null, text: string, before: string, after: string, tops: [string, number][]}} Worst */

const BEFORE = 40; // characters of the context
const AFTER = 20;

/** The events that end a model call with recorded tokens, with the call's number. @param {any[]} events */
function tokenCalls(events) {
  const found = [];
  events.forEach((event, index) => {
    if (event.tokens) found.push({ call: found.length, index, event });
  });
  return found;
}

/** The least likely generated tokens, least likely first, with the text around them. @param {any[]} events @param {number} most @returns {Worst[]} */
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

const tail = (text, most) => (text.length > most ? `…${[...text.slice(-most)].join('')}` : text);

const head = (text, most) => (text.length > most ? `${text.slice(0, most)}…` : text);

/** Where a token is in the conversation: the event and the index of its piece, or null if it has no text there. @param {any[]} events
 * @param {(import('./tokenpieces.js').Piece[] | null)[]} pieces those of all events @param {number} call @param {number} position */
export function placeOf(events, pieces, call, position) {
  const calls = tokenCalls(events);
  if (!calls[call]) return null;
  /** @type {{event: number, piece: number, first: number} | null} */
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
