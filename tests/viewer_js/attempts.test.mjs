/** Addresses of failed attempts. */
import assert from 'node:assert/strict';
import test from 'node:test';
import { attemptLink, attemptsLink, runOfOutput } from '../../analysis/viewer/static/route.js';

test('a failed attempt is addressed by its rollout and its position', () => {
  assert.equal(attemptLink(0, { task: 3, repeat: 1, at: 2 }), '#/runs/0/attempts/3/1/2');
});

test('the list can be limited to a finding', () => {
  assert.equal(attemptsLink(1, { finding: 'error_burst' }), '#/runs/1/attempts?finding=error_burst');
});

test('the file of a collection is recognised by its absolute path', () => {
  const overview = { runs: [{ run: 0, path: 'a.jsonl', absolute_path: '/data/a.jsonl' }, { run: 1, path: 'b.jsonl', absolute_path: '/data/b.jsonl' }] };
  assert.equal(runOfOutput(overview, '/data/b.jsonl').run, 1);
  assert.equal(runOfOutput(overview, '/elsewhere/b.jsonl'), undefined);
});
