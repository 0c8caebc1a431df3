/** Numbers are rounded for reading, except where they are compared. */
import assert from 'node:assert/strict';
import test from 'node:test';
import { exact, plain } from '../../analysis/viewer/static/formatting.js';

test('numbers that are compared keep all digits', () => {
  assert.equal(plain(12345678), plain(12345679));
  assert.deepEqual([12345678, 3.14163, -1e-13, 0].map(exact), ['12345678', '3.14163', '−1e-13', '0']);
});
