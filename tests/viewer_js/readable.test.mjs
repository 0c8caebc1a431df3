/** Calls and results are shown as fields only where that changes no value. */
import assert from 'node:assert/strict';
import test from 'node:test';
import { readable } from '../../analysis/viewer/static/parts/alignment.js';
import { parseObject } from '../../analysis/viewer/static/parts/parsed.js';

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
