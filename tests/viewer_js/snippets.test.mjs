/** What a search matched in a conversation. */
import assert from 'node:assert/strict';
import test from 'node:test';
import { placeOf, snippetOf } from '../../analysis/viewer/static/textmatches.js';

const EVENTS = [
  { speaker: 'user', text: 'Open it.', name: '', turn: 0 },
  { speaker: 'call', text: '{"at": "the Door"}', name: 'look', turn: 1, call: 'c' },
  { speaker: 'result', text: 'a door\n\n  of oak', name: '', turn: 1, call: 'c' },
];

test('a snippet is the first event with the text in any case', () => {
  assert.deepEqual(snippetOf(EVENTS, 'DOOR'), {
    event: 1, turn: 1, place: 'call', name: 'look', others: 1, before: '{"at": "the ', match: 'Door', after: '"}',
  });
  assert.equal(snippetOf(EVENTS, 'window'), null);
});

test('a match is shown on one line, and long texts around it are cut', () => {
  assert.equal(snippetOf(EVENTS, 'of oak').before, 'a door ');
  const long = snippetOf([{ ...EVENTS[0], text: `${'x'.repeat(999)}needle${'y'.repeat(999)}` }], 'needle');
  assert.deepEqual([long.before, long.after], [`…${'x'.repeat(60)}`, `${'y'.repeat(140)}…`]);
});

test('the place of a match is stated in words', () => {
  assert.equal(placeOf(snippetOf(EVENTS, 'door')), 'turn 1, call of look, and 1 more');
  assert.equal(placeOf(snippetOf(EVENTS, 'open')), 'prompt, user');
  assert.equal(placeOf(snippetOf(EVENTS, 'oak')), 'turn 1, result of look');
  assert.equal(placeOf({ event: null, place: 'scores' }), 'in the field scores');
});
