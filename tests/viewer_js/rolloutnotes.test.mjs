/** What applies to rollouts: merging of responses, labels, verdicts, completion. */
import assert from 'node:assert/strict';
import test from 'node:test';
import { labelsOf, merged, overrideOf, parseVerdict, toggled, verdictText } from '../../analysis/viewer/static/parts/notestore.js';

const notes = (more) => ({ task: 0, repeat: 0, labels: [], verdicts: [], texts: [], ...more });

test('a response that is not complete changes only its rollouts, and removes those without notes', () => {
  const before = merged(new Map(), [notes({ texts: [1] }), notes({ task: 1, texts: [1] })], true);
  const after = merged(before, [notes({}), notes({ task: 2, texts: [1] })], false);
  assert.deepEqual([...after.keys()], ['1/0', '2/0']);
  assert.deepEqual([...before.keys()], ['0/0', '1/0']);
});

test('a complete response replaces everything', () => {
  const before = merged(new Map(), [notes({ texts: [1] })], true);
  assert.equal(merged(before, [], true).size, 0);
});

test('a label has all its authors', () => {
  const both = notes({ labels: [{ label: 'loop', author: 'ann' }, { label: 'x', author: 'bob' }, { label: 'loop', author: 'bob' }] });
  assert.deepEqual(labelsOf(both), [{ label: 'loop', authors: ['ann', 'bob'] }, { label: 'x', authors: ['bob'] }]);
});

test('a label of this author is removed, and one of another author is added', () => {
  const given = notes({ labels: [{ label: 'loop', author: 'ann' }] });
  assert.deepEqual(toggled(given, 'loop', 'ann'), { kind: 'unlabel', label: 'loop' });
  assert.deepEqual(toggled(given, 'loop', 'bob'), { kind: 'label', label: 'loop' });
});

test('the last verdict of anyone counts', () => {
  assert.equal(overrideOf(notes({ verdicts: [{ verdict: 'wrong' }, { verdict: 1 }] })).verdict, 1);
  assert.equal(overrideOf(notes({})), null);
});

test('verdicts are read as people type them', () => {
  assert.deepEqual(['correct', ' C ', 'w', 'wrong', '0.5', '0,5', '-1', ''].map(parseVerdict), ['correct', 'correct', 'wrong', 'wrong', 0.5, 0.5, -1, null]);
  assert.deepEqual(['maybe', 'Infinity', '1e999', 'NaN'].map(parseVerdict), [null, null, null, null]);
  assert.deepEqual([verdictText('wrong'), verdictText(0.5)], ['wrong', 'reward 0.5']);
});
