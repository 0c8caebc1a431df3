/** The list of an exported page. */
import assert from 'node:assert/strict';
import test from 'node:test';
import { filtered } from '../../analysis/viewer/static/embedded.js';

const line = (task, cells) => ({ task, repeat: 0, outcome: 'measured', reward: task, success: null, end: '', agent: '', cells });
const PAGE = { columns: [{ path: 'level' }], lines: [line(0, ['b']), line(1, [null]), line(2, ['a'])] };

test('an exported list is sorted by its columns, with missing values last', () => {
  const tasks = (sort) => filtered(PAGE, new URLSearchParams({ sort })).lines.map((one) => one.task);
  assert.deepEqual(tasks('level'), [2, 0, 1]);
  assert.deepEqual(tasks('-level'), [0, 2, 1]);
});

test('the values of an exported page stay with their lines', () => {
  const page = filtered(PAGE, new URLSearchParams({ min_reward: '1', start: '1', limit: '5' }));
  assert.deepEqual(page.cells, [['a']]);
});

test('a start past the end of an exported list gives its last page', () => {
  const page = filtered(PAGE, new URLSearchParams({ start: '100', limit: '2' }));
  assert.deepEqual([page.start, page.lines.map((one) => one.task)], [2, [2]]);
});
