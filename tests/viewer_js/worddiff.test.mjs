/** The difference of two texts by words. */
import assert from 'node:assert/strict';
import test from 'node:test';
import { wordDiff } from '../../analysis/viewer/static/parts/alignment.js';

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
