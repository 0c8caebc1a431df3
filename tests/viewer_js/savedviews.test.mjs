/** Named views and default views. */
import assert from 'node:assert/strict';
import test from 'node:test';
import { savedViews, saveView, viewOf } from '../../analysis/viewer/static/storage.js';

/** A storage in memory, with the two methods that the module uses. */
function memory(items = {}) {
  return () => ({ getItem: (key) => items[key] ?? null, setItem: (key, value) => { items[key] = value; } });
}

test('a saved view is listed until it is deleted', () => {
  const storage = memory();
  saveView('hard', 'where=reward+%3C+1', storage);
  saveView('easy', 'sort=reward', storage);
  assert.deepEqual(savedViews(storage), [['easy', 'sort=reward'], ['hard', 'where=reward+%3C+1']]);
  saveView('hard', null, storage);
  assert.deepEqual(savedViews(storage), [['easy', 'sort=reward']]);
});

test('a browser without storage, or with other contents, has no views', () => {
  const refused = () => { throw new Error('no storage'); };
  assert.deepEqual(savedViews(refused), []);
  assert.equal(saveView('x', 'y', refused), false);
  assert.deepEqual(savedViews(memory({ 'rollyard.views': '[1]' })), []);
});

test('a view contains filters, order and columns, but no page and no open panel', () => {
  const query = new URLSearchParams('where=reward+%3C+1&sort=-reward&columns=tag&start=100&facet=tag&at=3');
  assert.equal(viewOf(query), 'where=reward+%3C+1&sort=-reward&columns=tag');
});
