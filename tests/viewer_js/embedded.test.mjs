/** The list of an exported page, and what a search matched. */
import assert from 'node:assert/strict';
import test from 'node:test';
import { filtered } from '../../analysis/viewer/static/embedded.js';
import { placeOf, snippetOf } from '../../analysis/viewer/static/textmatches.js';

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

const EVENTS = [
  { speaker: 'user', text: 'Open it.', name: '', turn: 0 },
  { speaker: 'call', text: '{"at": "the Door"}', name: 'look', turn: 1, call: 'c' },
  { speaker: 'result', text: 'a door\n\n  of oak', name: '', turn: 1, call: 'c' },
];

test('a snippet is the first event with the text in any case', () => {
  assert.deepEqual(snippetOf(EVENTS, 'DOOR'), {
    event: 1, turn: 1, place: 'call', name: 'look', others: 1, before: '{"at": "the ', match: 'Door', after: '"}',
  });
  assert.equal(snippetOf(EVENTS, 'window'), null);
});

test('a match is shown on one line, and long texts around it are cut', () => {
  assert.equal(snippetOf(EVENTS, 'of oak').before, 'a door ');
  const long = snippetOf([{ ...EVENTS[0], text: `${'x'.repeat(999)}needle${'y'.repeat(999)}` }], 'needle');
  assert.deepEqual([long.before, long.after], [`…${'x'.repeat(60)}`, `${'y'.repeat(140)}…`]);
});

test('the place of a match is stated in words', () => {
  assert.equal(placeOf(snippetOf(EVENTS, 'door')), 'turn 1, call of look, and 1 more');
  assert.equal(placeOf(snippetOf(EVENTS, 'open')), 'prompt, user');
  assert.equal(placeOf(snippetOf(EVENTS, 'oak')), 'turn 1, result of look');
  assert.equal(placeOf({ event: null, place: 'scores' }), 'in the field scores');
});
