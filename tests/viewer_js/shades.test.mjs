/** The shades and the keys of the heat map. */
import assert from 'node:assert/strict';
import test from 'node:test';
import { nextCell, shadeOf } from '../../analysis/viewer/static/formatting.js';

test('the lowest value has the first shade, the highest the last', () => {
  assert.deepEqual([-1, 0, 1, 5].map((value) => shadeOf(value, -1, 5)), [0, 2, 3, 10]);
});

test('values outside of the range and a range without extent have shades too', () => {
  assert.deepEqual([shadeOf(9, 0, 1), shadeOf(-9, 0, 1), shadeOf(3, 3, 3)], [10, 0, 5]);
});

test('arrow keys skip cells without rollouts and stop at the edge', () => {
  const cells = [[true, false, true], [true, true, true]];
  assert.deepEqual(nextCell(cells, [0, 0], [0, 1]), [0, 2]);
  assert.equal(nextCell(cells, [0, 2], [0, 1]), null);
  assert.deepEqual(nextCell(cells, [1, 1], [-1, 0]), null);
});
