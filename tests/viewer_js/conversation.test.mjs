/** The outline, few-shot examples, matches and tokens of a conversation. */
import assert from 'node:assert/strict';
import test from 'node:test';
import { countedNames, fewShotRange, outlineOf } from '../../analysis/viewer/static/parts/episodeoutline.js';
import { piecesByEvent, piecesOf, piecesOfConversation, leastLikely, parseToken, placeOf } from '../../analysis/viewer/static/parts/tokenpieces.js';
import { matchPositions } from '../../analysis/viewer/static/textmatches.js';

const event = (speaker, text, turn, more = {}) => ({ speaker, text, turn, name: '', reward: null, tokens: null, ...more });
const tokens = (texts) => ({ texts, generated: texts.map((_, i) => i), log_probs: texts.map((_, i) => -i), alternatives: [] });
const texts = (pieces) => pieces?.map((piece) => piece.text).join('');

test('the outline has an entry for the prompt and for each turn, with its calls and rewards', () => {
  const events = [event('user', 'go', 0), event('call', '', 1, { name: 'step' }), event('call', '', 1, { name: 'step' }),
    event('result', '', 1, { reward: -0.5 }), event('result', '', 1, { reward: 2 }), event('answer', '## The *end*', 2)];
  const entries = outlineOf(events);
  assert.deepEqual(entries.map((one) => [one.turn, one.index, one.reward]), [[0, 0, null], [1, 1, 1.5], [2, 5, null]]);
  assert.equal(countedNames(entries[1].calls), 'step ×2');
  assert.equal(entries[2].words, 'The end');
});

test('the examples before the last question of the prompt are few-shot examples', () => {
  const prompt = [event('system', '', 0), event('user', '', 0), event('answer', '', 0), event('user', '', 0)];
  assert.deepEqual(fewShotRange([...prompt, event('answer', '', 1), event('user', '', 1)]), [1, 3]);
  assert.deepEqual(fewShotRange([prompt[0], prompt[1], event('user', '', 0)]), [0, 0]);
});

test('matches are found in either case, at their own positions', () => {
  assert.deepEqual(matchPositions('Up, up, UP', 'up'), [0, 4, 8]);
  assert.deepEqual(matchPositions('İup', 'up'), [1]);
  assert.deepEqual(matchPositions('aaa', ''), []);
});

test('tokens that are parts of one character are one piece with their joint probability', () => {
  const [, piece] = piecesOf(tokens(['a', '', '', '🎉', 'b']));
  assert.deepEqual([piece.text, piece.ids, piece.logProb], ['🎉', [1, 2, 3], -6]);
});

test('every token belongs to exactly one event, and markers to the event after them', () => {
  const pieces = piecesOf(tokens(['<think>', 'hm', '</think>', 'I ', 'go', '<tool_call>', 'step', ' {}', '<end>']));
  const divided = piecesByEvent(pieces, [event('reasoning', 'hm', 1), event('answer', 'I go', 1), event('call', '{}', 1, { name: 'step' })]);
  assert.deepEqual(divided.map(texts), ['<think>hm', '</think>I go', '<tool_call>step {}<end>']);
});

test('the tokens of an event that is not found stay with the event before', () => {
  const divided = piecesByEvent(piecesOf(tokens(['one', ' two'])), [event('answer', 'one', 1), event('call', '', 1, { name: 'other' })]);
  assert.deepEqual(divided.map(texts), ['one two', '']);
});

test('two calls of the model do not share tokens', () => {
  const events = [event('answer', 'one', 1, { tokens: tokens(['one']) }), event('answer', 'two', 2, { tokens: tokens(['two']) })];
  assert.deepEqual(piecesOfConversation(events).map(texts), ['one', 'two']);
});

test('the arguments of a call may contain the name of the next one', () => {
  const call = (argument) => `<c>{"name": "step", "say": "${argument} step"}`;
  const calls = [event('call', '', 1, { name: 'step' }), event('call', '', 1, { name: 'step' })];
  const pieces = piecesByEvent(piecesOf(tokens((call('next') + call('last')).match(/\s?\w+|./g))), calls);
  assert.deepEqual(pieces.map(texts), [`${call('next')}<c>{`, call('last').slice(4)]);
});

const rated = (texts, logProbs, ids = texts.map((_, i) => i + 1)) => ({ texts, log_probs: logProbs, generated: ids, alternatives: [], prompt: [] });
const answer = (text, turn, recorded = null) => ({ speaker: 'answer', text, name: '', turn, tokens: recorded });

const EVENTS = [
  { speaker: 'user', text: 'go', name: '', turn: 0, tokens: null },
  { ...answer('think', 1), speaker: 'reasoning' },
  answer('I go up', 1, rated(['think', 'I', ' go', ' up'], [-0.1, -5, -0.2, -3])),
  { speaker: 'result', text: 'ok', name: '', turn: 1, tokens: null },
  answer('🎉 done', 2, rated(['', '', '🎉', ' done'], [-1, -2, -4, -0.5])),
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
  assert.deepEqual(leastLikely([answer('a', 1, rated(['a'], []))], 5), []);
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
