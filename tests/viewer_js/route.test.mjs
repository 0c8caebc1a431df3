/** Addresses, and what pages depend on besides them. */
import assert from 'node:assert/strict';
import test from 'node:test';
import { decoded } from '../../analysis/viewer/static/route.js';
import { versionOf } from '../../analysis/viewer/static/runs.js';

test('a part of an address with an invalid percent sign stays as it is', () => {
  assert.equal(decoded('a%20b'), 'a b');
  assert.equal(decoded('%zz'), '%zz');
});

test('the version of a run changes with its file, but not while it grows', () => {
  const run = { size: 10, torn: 0, indexed: 10, measured: 1, failed: 0, status: null };
  assert.notEqual(versionOf(run), versionOf({ ...run, size: 20, indexed: 20 }));
  assert.equal(versionOf({ ...run, indexed: 5 }), versionOf({ ...run, size: 20 }));
  assert.equal(versionOf({ ...run, status: { state: 'running' } }), '');
});
