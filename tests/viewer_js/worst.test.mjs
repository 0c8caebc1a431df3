/** The least likely tokens of a rollout, and where a token is in its conversation. */
import assert from 'node:assert/strict';
import test from 'node:test';
import { leastLikely, parseToken, placeOf } from '../../analysis/viewer/static/parts/tokenpieces.js';
import { piecesOfConversation } from '../../analysis/viewer/static/parts/tokenpieces.js';

const tokens = (texts, logProbs, ids = texts.map((_, i) => i + 1)) => ({ texts, log_probs: logProbs, generated: ids, alternatives: [], prompt: [] });
const answer = (text, turn, recorded = null) => ({ speaker: 'answer', text, name: '', turn, tokens: recorded });

const EVENTS = [
  { speaker: 'user', text: 'go', name: '', turn: 0, tokens: null },
  { ...answer('think', 1), speaker: 'reasoning' },
  answer('I go up', 1, tokens(['think', 'I', ' go', ' up'], [-0.1, -5, -0.2, -3])),
  { speaker: 'result', text: 'ok', name: '', turn: 1, tokens: null },
  answer('🎉 done', 2, tokens(['', '', '🎉', ' done'], [-1, -2, -4, -0.5])),
];

test('tokens are listed with the least likely first, in context', () => {
  const found = leastLikely(EVENTS, 3);
  assert.deepEqual(found.map((one) => [one.call, one.position, one.turn, one.text]), [[0, 1, 1, 'I'], [1, 2, 2, '🎉'], [0, 3, 1, ' up']]);
  assert.deepEqual([found[0].before, found[0].after], ['think', ' go up']);
});

test('a token that contains a part of a character has the text of the character', () => {
  const part = leastLikely(EVENTS, 10).find((one) => one.call === 1 && one.position === 1);
  assert.deepEqual([part.before, part.text, part.after], ['', '🎉', ' done']);
});

test('a call without log-probabilities lists nothing', () => {
  assert.deepEqual(leastLikely([answer('a', 1, tokens(['a'], []))], 5), []);
});

test('a token without a text has its id', () => {
  const [one] = leastLikely([answer('a', 1, { texts: [], log_probs: [-1], generated: [17], alternatives: [], prompt: [] })], 5);
  assert.deepEqual([one.id, one.text], [17, '']);
});

test('a token is found in the event that contains it', () => {
  const pieces = piecesOfConversation(EVENTS);
  assert.deepEqual(placeOf(EVENTS, pieces, 0, 0), { event: 1, piece: 0 });
  assert.deepEqual(placeOf(EVENTS, pieces, 0, 3), { event: 2, piece: 2 });
  assert.deepEqual(placeOf(EVENTS, pieces, 1, 1), { event: 4, piece: 0 });
  assert.equal(placeOf(EVENTS, pieces, 7, 0), null);
});

test('only two numbers name a token', () => {
  assert.deepEqual(parseToken('3.17'), { call: 3, position: 17 });
  for (const text of [null, '', '3', '3.', 'a.b', '-1.2', '1.2.3']) assert.equal(parseToken(text), null);
});
