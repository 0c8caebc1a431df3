/** Columns, expressions and their completion, named views. */
import assert from 'node:assert/strict';
import test from 'node:test';
import { DEFAULT_COLUMNS, barCondition, completions, formatColumns, joined, parseColumns, shownColumns, valueText } from '../../analysis/viewer/static/columns.js';
import { savedViews, saveView, viewOf } from '../../analysis/viewer/static/storage.js';

test('the default columns are not written to the address', () => {
  assert.equal(formatColumns(parseColumns(null)), null);
  assert.equal(formatColumns([]), null);
  assert.equal(formatColumns(['reward', 'row["a,b"]']), 'reward,row["a,b"]');
});

test('commas in quoted keys separate no columns', () => {
  assert.deepEqual(parseColumns('reward, row["a,b"] ,tag,tag'), ['reward', 'row["a,b"]', 'tag']);
});

test('(verdict) stands for the fields with a role, in the order of the page', () => {
  const heads = [{ path: '(prompt)', role: null }, { path: 'gold', role: 'expected' }, { path: 'why', role: 'reason' }];
  const shown = shownColumns(DEFAULT_COLUMNS, heads, new Set(['repeat', 'success', 'reward', 'tool_calls', 'turns', 'output_tokens', 'seconds', 'end']));
  assert.deepEqual(shown.slice(2, 7).map((one) => one.name ?? one.head.path), ['reward', '(prompt)', 'gold', 'why', 'tool_calls']);
  assert.equal(shown.find((one) => one.head?.path === 'why').head.at, 2);
});

test('a column whose name the server writes differently is shown last', () => {
  const shown = shownColumns(['row["tag"]', 'reward'], [{ path: 'row.tag', role: null }], new Set(['reward']));
  assert.deepEqual(shown.map((one) => one.name ?? one.head.path), ['reward', 'row.tag']);
});

test('the last name of an expression is completed, prefixes first', () => {
  const keys = ['reward', 'my_reward', 'tool_calls'];
  assert.deepEqual(completions('success and rew', keys), ['success and reward', 'success and my_reward']);
  assert.deepEqual(completions('reward > ', keys), []);
  assert.deepEqual(completions('tag == "rew', keys), []);
});

test('conditions are joined so that or keeps its meaning', () => {
  assert.equal(joined('', 'a == 1'), 'a == 1');
  assert.equal(joined('a == 1 or b', 'c == "x"'), '(a == 1 or b) and c == "x"');
});

test('a list of booleans is shown as the number that are true', () => {
  assert.equal(valueText([true, false, true]), '2 of 3');
  assert.equal(valueText([]), '[]');
  assert.equal(valueText(null), '');
});

test('a bar selects what it counts: rounded values, or values up to the next bar', () => {
  const bounds = barCondition('reward', { low: -1.1, high: -1.1 }, false).match(/-1\.\d+/g).map(Number);
  assert.ok(bounds[0] < -1.1000000000000003 && -1.0999999999999999 < bounds[1] && bounds[1] - bounds[0] < 2e-9);
  assert.equal(barCondition('length', { low: 2.5, high: 5 }, false), 'length >= 2.5 and length < 5');
  assert.equal(barCondition('length', { low: 97.5, high: 100 }, true), 'length >= 97.5 and length <= 100');
});

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
