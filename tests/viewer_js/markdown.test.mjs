/** Texts of rollouts are divided and parsed as Markdown; nothing takes long. */
import assert from 'node:assert/strict';
import test from 'node:test';
import { openFence, segments } from '../../services/viewer/static/parts/markdown/segments.js';
import { parseMarkdown } from '../../services/viewer/static/parts/markdown/parse.js';
import { highlighted } from '../../services/viewer/static/parts/markdown/highlight.js';

const kinds = (text) => segments(text).filter((one) => one.text.trim()).map((one) => one.kind);
const formulas = (text) => parseMarkdown(text)[0].tokens.filter((one) => one.type === 'formula').map((one) => one.text);

test('a board is never parsed as Markdown', () => {
  assert.deepEqual(kinds('# Title\n\n#####\n#.P_#\n#####\n\nThe *end*'), ['prose', 'grid', 'prose']);
});

test('a table with rows of numbers is no board', () => {
  assert.deepEqual(kinds('| move | reward |\n|---|---|\n| 1 | 2 |\n| 3 | 4 |'), ['prose']);
});

test('code is kept verbatim, with its language, even if it contains a board', () => {
  assert.deepEqual(segments('```Python\n###\n#.#\n```'), [{ kind: 'code', text: '###\n#.#', language: 'python' }]);
});

test('code in an item of a list has the indentation of its fence removed', () => {
  const [, code] = segments('1. First\n   ```python\n   if x:\n     y()\n   ```\n2. Second');
  assert.deepEqual(code, { kind: 'code', text: 'if x:\n  y()', language: 'python' });
});

test('a formula of several lines is a formula and no board', () => {
  assert.deepEqual(segments('$$\nx^2\ny^2\n$$'), [{ kind: 'math', text: 'x^2\ny^2' }]);
});

test('a formula without an end is text', () => {
  assert.deepEqual(kinds('$$ x\n\nmore words'), ['prose']);
});

test('amounts of money are no formulas', () => {
  assert.deepEqual(formulas('It costs $5 or $6, or $ 7 $.'), []);
  assert.deepEqual(formulas('It costs $x$ and \\(y\\) and $$z$$.'), ['x', 'y', 'z']);
});

test('what would take long to parse is not parsed', () => {
  for (const text of ['_a'.repeat(20_000), '> '.repeat(500), '- '.repeat(500), '1. '.repeat(500)]) assert.equal(parseMarkdown(text), null);
});

test('a line of dashes is parsed', () => {
  assert.equal(parseMarkdown('-'.repeat(80))[0].type, 'hr');
});

test('HTML stays a token of its own', () => {
  assert.deepEqual(parseMarkdown('a <b>c</b>')[0].tokens.map((one) => one.type), ['text', 'html', 'text', 'html']);
});

test('code is divided by scopes and keeps its text', () => {
  const text = (part) => (typeof part === 'string' ? part : part.children.map(text).join(''));
  const code = 'def f(x):\n    return "<a>"  # c';
  const tree = highlighted(code, 'py');
  assert.equal(text(tree), code);
  assert.deepEqual(tree.children.filter((one) => one.scope === 'string').map(text), ['"<a>"']);
});

test('an unknown language and long code are not highlighted', () => {
  assert.equal(highlighted('x', 'klingon'), null);
  assert.equal(highlighted('x'.repeat(30_000), 'python'), null);
});

test('code with a very long word is not highlighted, because that would take seconds', () => {
  for (const word of ['$', 'a', '__', '1e']) assert.equal(highlighted(`x = ${word.repeat(9000)}`, 'java'), null);
  assert.notEqual(highlighted(`x = "${'a'.repeat(400)}";`, 'java'), null);
});

test('short formulas and lists of them are no board', () => {
  for (const text of ['$x = 5$\n$y = 3$', '1. $a+b$\n2. \\(c\\)', '- **A**\n- **B**']) assert.deepEqual(segments(`Thus:\n${text}\nend`), [{ kind: 'prose', text: `Thus:\n${text}\nend` }]);
  assert.deepEqual(kinds('$.#\n#.$'), ['grid']);
});

test('two display formulas on one line are two formulas', () => {
  assert.deepEqual(kinds('\\[ a=1 \\] and \\[ b=2 \\]'), ['prose']);
  assert.deepEqual(kinds('$$a=1$$, so $$b=2$$'), ['prose']);
  assert.deepEqual(formulas('$$a=1$$, so $$b=2$$'), ['a=1', 'b=2']);
});

test('the end of a shortened text is code only if it is within code', () => {
  assert.equal(openFence('Fix this:\n```python\na = 1'), '```python\n');
  assert.equal(openFence('Fix this:\n```python\na = 1\n```\nnow'), '');
  assert.equal(openFence('no code'), '');
});
