/** Addresses, and what pages depend on besides them. */
import assert from 'node:assert/strict';
import test from 'node:test';
import { attemptLink, decoded, runOfOutput } from '../../analysis/viewer/static/route.js';
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

test('a failed attempt is addressed by its rollout and its position', () => {
  assert.equal(attemptLink(0, { task: 3, repeat: 1, at: 2 }), '#/runs/0/attempts/3/1/2');
});

test('the file of a collection is recognised by its absolute path', () => {
  const overview = { runs: [{ run: 0, path: 'a.jsonl', absolute_path: '/data/a.jsonl' }, { run: 1, path: 'b.jsonl', absolute_path: '/data/b.jsonl' }] };
  assert.equal(runOfOutput(overview, '/data/b.jsonl').run, 1);
  assert.equal(runOfOutput(overview, '/elsewhere/b.jsonl'), undefined);
});
