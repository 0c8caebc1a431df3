/** The alignment of two rollouts, and the difference of their texts. */
import assert from 'node:assert/strict';
import test from 'node:test';
import { align, callsByRow, divergences, divergenceText, frameAfter, samePrompt, turnsOf, wordDiff, readable } from '../../analysis/viewer/static/parts/alignment.js';
import { parseObject } from '../../analysis/viewer/static/parts/parsed.js';

const event = (speaker, turn, text, more = {}) => ({ speaker, turn, text, name: '', call: '', reward: null, ...more });

/** Events of turns given as [call, result] or [call, result, words]. */
const episode = (...turns) => turns.flatMap(([call, result, words], i) => [
  ...(words ? [event('reasoning', i + 1, words)] : []),
  event('call', i + 1, call, { name: 'step' }), event('result', i + 1, result),
]);
const rowsOf = (a, b) => align(turnsOf(a).turns, turnsOf(b).turns);
const kinds = (a, b) => rowsOf(a, b).map((row) => row.kind);

test('equal rollouts have no divergence', () => {
  const rows = rowsOf(episode(['up', '1'], ['down', '2']), episode(['up', '1'], ['down', '2']));
  assert.deepEqual(divergences(rows), []);
  assert.equal(divergenceText(true, rows), 'Same prompt. All 2 turns have the same calls and results.');
});

test('the first different call is the first divergence', () => {
  const rows = rowsOf(episode(['up', '1'], ['down', '2']), episode(['up', '1'], ['left', '3']));
  assert.deepEqual(divergences(rows), [1]);
  assert.equal(divergenceText(true, rows), 'Same prompt. The first different action is in turn 2.');
});

test('another result of the same call is called an environment that is not deterministic', () => {
  const rows = rowsOf(episode(['up', '1']), episode(['up', '2']));
  assert.equal(rows[0].kind, 'observation');
  assert.match(divergenceText(true, rows), /same call got different results\. The environment is not deterministic/);
  assert.doesNotMatch(divergenceText(false, rows), /deterministic/);
});

test('an additional turn does not shift the turns after it', () => {
  assert.deepEqual(kinds(episode(['up', '1'], ['down', '2'], ['left', '3']), episode(['up', '1'], ['look', '0'], ['down', '2'], ['left', '3'])),
    ['same', 'only-second', 'same', 'same']);
});

test('other words before the same call are no divergence', () => {
  const rows = rowsOf(episode(['up', '1', 'I go up']), episode(['up', '1', 'Up it is']));
  assert.equal(rows[0].kind, 'wording');
  assert.deepEqual(divergences(rows), []);
});

test('a rollout that ends earlier diverges where it ends', () => {
  const rows = rowsOf(episode(['up', '1'], ['down', '2']), episode(['up', '1']));
  assert.equal(divergenceText(true, rows), 'Same prompt. Turn 2 is only in the first rollout.');
});

test('without calls, the answers are compared', () => {
  assert.deepEqual(kinds([event('answer', 1, '42')], [event('answer', 1, '41')]), ['action']);
});

test('every turn of both rollouts is in exactly one row, whatever they are', () => {
  const random = (seed) => () => { seed = (seed * 48271) % 2147483647; return seed / 2147483647; };
  for (let seed = 1; seed < 60; seed += 1) {
    const next = random(seed * 7919);
    const some = () => episode(...Array.from({ length: Math.floor(next() * 9) }, () => ['abc'[Math.floor(next() * 3)], String(Math.floor(next() * 2))]));
    const [a, b] = [some(), some()];
    const rows = rowsOf(a, b);
    assert.deepEqual(rows.flatMap((row) => row.left ?? []).map((turn) => turn.turn), turnsOf(a).turns.map((turn) => turn.turn));
    assert.deepEqual(rows.flatMap((row) => row.right ?? []).map((turn) => turn.turn), turnsOf(b).turns.map((turn) => turn.turn));
  }
});

test('prompts are the same only if all their messages are', () => {
  assert.ok(samePrompt([event('user', 0, 'play')], [event('user', 0, 'play')]));
  assert.ok(!samePrompt([event('user', 0, 'play')], [event('user', 0, 'play 2')]));
});

test('boards show the state after the calls of the row', () => {
  const rows = rowsOf(episode(['up', '1'], ['down', '2']), episode(['up', '1'], ['look', '0'], ['down', '2']));
  assert.deepEqual(callsByRow(rows), [[0, 0], [0, 1], [1, 2]]);
  const frames = [{ event: null }, { event: 0 }, { event: 0 }, { event: 1 }];
  assert.deepEqual([-1, 0, 1, 9].map((call) => frameAfter(frames, call)), [0, 2, 3, 3]);
});

test('two long rollouts are aligned by number instead of filling the memory', () => {
  const long = (name) => Array.from({ length: 2500 }, (_, i) => event('call', i + 1, `${name}${i}`, { name }));
  assert.equal(rowsOf(long('a'), long('b')).length, 2500);
});

test('results of parallel calls may come in any order', () => {
  const call = (id) => event('call', 1, id, { name: 'step', call: id });
  const result = (id, text) => event('result', 1, text, { call: id });
  const first = [call('a'), call('b'), result('a', '1'), result('b', '2')];
  assert.deepEqual(kinds(first, [call('a'), call('b'), result('b', '2'), result('a', '1')]), ['same']);
  assert.deepEqual(kinds(first, [call('a'), call('b'), result('b', '1'), result('a', '2')]), ['observation']);
});

const textOf = (pieces, side) => pieces.filter(({ kind }) => kind === 'same' || kind === side).map(({ text }) => text).join('');

test('only the changed word is marked', () => {
  assert.deepEqual(wordDiff('go up now', 'go down now'), [
    { kind: 'same', text: 'go ' }, { kind: 'first', text: 'up' }, { kind: 'second', text: 'down' }, { kind: 'same', text: ' now' },
  ]);
});

test('both texts can be restored from the pieces', () => {
  const texts = ['', 'a', 'the box is at 3, 4', 'the box was at 3, 5!', 'é ü\n\n  x', '盒子 box', 'box box box', `${'word '.repeat(3000)}`, `${'other '.repeat(3000)}`];
  for (const a of texts) {
    for (const b of texts) {
      const pieces = wordDiff(a, b);
      assert.equal(textOf(pieces, 'first'), a);
      assert.equal(textOf(pieces, 'second'), b);
    }
  }
});

test('equal texts are one piece', () => assert.deepEqual(wordDiff('same text', 'same text'), [{ kind: 'same', text: 'same text' }]));

test('objects with integers that a browser rounds stay texts', () => {
  for (const text of ['{"id": 1234567890123456789}', '{"ids": [1, -1234567890123456788]}']) {
    assert.equal(parseObject(text), null);
    assert.equal(readable(text), text);
  }
});

test('other objects are shown as fields', () => {
  assert.deepEqual(parseObject('{"x": 0.12345678901234568, "id": 42}'), { x: 0.12345678901234568, id: 42 });
  assert.equal(readable('{"id": 42, "say": "a"}'), 'id: 42\nsay: a');
});
