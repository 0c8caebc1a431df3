/** The button that unfolds the filters on a phone says how many are active. */
import assert from 'node:assert/strict';
import test from 'node:test';
import { activeFilters } from '../../analysis/viewer/static/embedded.js';

const active = (text) => activeFilters(new URLSearchParams(text));

test('order, columns and page are not filters', () => {
  assert.equal(active('sort=-reward&columns=reward&start=100&facet=end'), 0);
});

test('each condition counts once, and both ends of a range together', () => {
  assert.equal(active('q=x&where=reward+%3C+1&min_reward=0&max_reward=1&success=true'), 4);
});

test('an empty field is not a filter', () => {
  assert.equal(active('q=&min_reward='), 0);
});
