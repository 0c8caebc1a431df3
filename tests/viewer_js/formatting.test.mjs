/** Numbers, shades of the heat map, addresses. */
import assert from 'node:assert/strict';
import test from 'node:test';
import { exact, plain, nextCell, shadeOf } from '../../analysis/viewer/static/formatting.js';
import { attemptLink, decoded, runOfOutput } from '../../analysis/viewer/static/route.js';
import { versionOf } from '../../analysis/viewer/static/runs.js';

test('numbers that are compared keep all digits', () => {
  assert.equal(plain(12345678), plain(12345679));
  assert.deepEqual([12345678, 3.14163, -1e-13, 0].map(exact), ['12345678', '3.14163', '−1e-13', '0']);
});

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

test('a failed attempt is addressed by its rollout and its position', () => {
  assert.equal(attemptLink(0, { task: 3, repeat: 1, at: 2 }), '#/runs/0/attempts/3/1/2');
});

test('the file of a collection is recognised by its absolute path', () => {
  const overview = { runs: [{ run: 0, path: 'a.jsonl', absolute_path: '/data/a.jsonl' }, { run: 1, path: 'b.jsonl', absolute_path: '/data/b.jsonl' }] };
  assert.equal(runOfOutput(overview, '/data/b.jsonl').run, 1);
  assert.equal(runOfOutput(overview, '/elsewhere/b.jsonl'), undefined);
});
