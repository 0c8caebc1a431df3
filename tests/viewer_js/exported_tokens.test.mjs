/** An exported page orders and filters its tokens as the server does. */
import assert from 'node:assert/strict';
import test from 'node:test';
import { exportedTokens } from '../../analysis/viewer/static/parts/tokens/exported.js';

const group = (text, more) => ({ text, id: null, count: 10, surprisal: 0.1, log_prob: -1, entropy: null, rare: 0, ...more });
const VIEW = {
  sort: 'surprisal', least: 5, start: 0, total: 3,
  groups: [group('often', { count: 50, surprisal: 0.2 }), group('odd', { log_prob: -6, rare: 4, entropy: 1 }), group('once', { count: 1 })],
};
const texts = (query) => exportedTokens(VIEW, new URLSearchParams(query)).groups.map((one) => one.text);

test('the default is the order of the server', () => assert.deepEqual(texts(''), ['often', 'odd']));
test('every order puts its first token first', () => {
  assert.deepEqual(['log_prob', 'rare', 'count'].map((sort) => texts(`sort=${sort}`)[0]), ['odd', 'odd', 'often']);
});
test('only tokens with alternatives are ordered by entropy', () => assert.deepEqual(texts('sort=entropy'), ['odd']));
test('tokens are filtered by text and by frequency', () => {
  assert.deepEqual(texts('q=ON&least=1'), ['once']);
  assert.deepEqual(texts('least=20'), ['often']);
});
test('a page has at most the requested number of tokens', () => {
  const page = exportedTokens(VIEW, new URLSearchParams('start=1&limit=1'));
  assert.deepEqual([page.groups.length, page.total, page.start], [1, 2, 1]);
});
