/** Texts of rollouts are divided and parsed as Markdown, without losing a character; nothing takes long. */
import assert from 'node:assert/strict';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import { gunzipSync } from 'node:zlib';
import { openFence, segments } from '../../analysis/viewer/static/parts/markdown.js';
import { parse, textOf } from '../../analysis/viewer/static/parts/markdown.js';
import { highlighted } from '../../analysis/viewer/static/parts/highlight.js';

const DATA = fileURLToPath(new URL('../../../shared/data', import.meta.url));
const kinds = (text) => segments(text).filter((one) => one.text.trim()).map((one) => one.kind);
/** The texts of all parts of a kind, with their marks. */
const found = (text, kind, parts = parse(text)) => parts.filter((one) => typeof one !== 'string')
  .flatMap((one) => [...(one.kind === kind ? [textOf([one])] : []), ...found('', kind, one.children)]);
const PIECES = ['*', '**', '***', '_', '__', '`', '``', '```', '~~~', '~~', '#', '## ', '- ', '1. ', '> ', '| ', '|', '|---|', '---', '$', '$$', '\\(', '\\)', '\\[', '\\]',
  '\\', '\\begin{align}', '\\end{align}', '<b>', '</b>', '&amp;', '&lt;', '<!-- x -->', '![a](b)', '[a](javascript:alert(1))', 'https://x.org/_a_', '\n', '\n\n',
  '\r\n', '\t', '  ', '    ', '\u00a0', '\u3000', '🎉', 'שלום', 'word', 'a', '7', '#####\n#.P_#', 'python', '.', ':', '"'];

/** Texts of up to 60 pieces, the same in every run. */
function drawnTexts(count) {
  let state = 27;
  const below = (n) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * n);
  };
  return Array.from({ length: count }, () => Array.from({ length: below(60) }, () => PIECES[below(PIECES.length)]).join(''));
}

/** All texts in a value of JSON. */
function textsIn(value) {
  if (typeof value === 'string') return [value];
  return value && typeof value === 'object' ? Object.values(value).flatMap(textsIn) : [];
}

function check(text) {
  assert.equal(segments(text).map((one) => one.text).join('\n'), text);
  assert.equal(textOf(parse(text)), text);
}

test('no character of a drawn text is lost, wherever it is cut', () => {
  for (const text of drawnTexts(5000)) {
    check(text);
    const cut = text.length >> 1;
    assert.equal(textOf(parse(text.slice(cut), openFence(text.slice(0, cut)))), text.slice(cut));
  }
});

test('no character of a data set is lost', { skip: !existsSync(DATA) }, () => {
  for (const name of readdirSync(DATA, { recursive: true }).filter((one) => /\.(md|txt|jsonl?)(\.gz)?$/.test(one))) {
    const bytes = readFileSync(`${DATA}/${name}`);
    const text = (name.endsWith('.gz') ? gunzipSync(bytes) : bytes).toString();
    const texts = name.includes('.jsonl') ? text.split('\n').filter(Boolean).flatMap((line) => textsIn(JSON.parse(line))) : [text];
    texts.forEach(check);
  }
});

test('marks stay, as parts of their own', () => {
  assert.deepEqual(parse('# is a *wall*'), [{ kind: 'heading level1', children: [{ kind: 'syntax', children: ['# '] }, 'is a ',
    { kind: 'em', children: [{ kind: 'syntax', children: ['*'] }, 'wall', { kind: 'syntax', children: ['*'] }] }] }]);
  const text = 'one **two *three* four** five\n- `a*b*` _six\n  seven_ eight\n> *nine*\n\n***ten***';
  assert.deepEqual(['strong', 'em', 'code', 'quote', 'both'].map((kind) => found(text, kind)),
    [['**two *three* four**'], ['*three*', '_six\n  seven_', '*nine*'], ['`a*b*`'], ['> *nine*\n'], ['***ten***']]);
});

test('names, products and escaped or lonely marks are no emphasis', () => {
  for (const text of ['snake_case_name', '2*3*4', 'a * b * c', '\\*a\\*', '**', '*a', 'a*', '__init', '*a\n\nb*', '- *a\n- b*', 'https://x.org/_a_b']) {
    assert.deepEqual(['em', 'strong', 'both'].flatMap((kind) => found(text, kind)), [], text);
  }
});

test('a board is never parsed as Markdown', () => {
  assert.deepEqual(kinds('# Title\n\n#####\n#.P_#\n#####\n\nThe *end*'), ['prose', 'grid', 'prose']);
  assert.deepEqual(kinds('# Title\r\n\r\n#####\r\n#.P_#\r\n#####\r\n\r\nThe *end*'), ['prose', 'grid', 'prose']);
});

test('a table with rows of numbers is no board, and its columns line up', () => {
  const text = '| move | reward |\n|---|--:|\n| 1 | 2 |\n| 3 | 4 |';
  assert.deepEqual(kinds(text), ['table']);
  const cells = parse(text)[0].children.filter((one) => one.kind?.startsWith('cell'));
  const widths = [];
  cells.forEach((cell, i) => { widths[i % 4] = [...(widths[i % 4] ?? []), textOf([cell]).length + cell.pad]; });
  assert.deepEqual(widths.map((one) => [...new Set(one)]), [[0], [6], [8], [0]]);
  assert.equal(cells[2].kind, 'cell right head');
});

test('code has its language, even if it contains a board', () => {
  assert.deepEqual(segments('```Python\n###\n#.#\n```'), [{ kind: 'code', text: '```Python\n###\n#.#\n```', language: 'python', body: [10, 17] }]);
  assert.deepEqual(found('```py\nx = 1\n```\nend', 'program'), ['x = 1']);
  assert.deepEqual([found('```py', 'program'), found('```\n```', 'program')], [[''], ['']]);
});

test('a formula of several lines is a formula and no board', () => {
  assert.deepEqual(found('$$\nx^2\ny^2\n$$', 'formula'), ['\nx^2\ny^2\n']);
});

test('a formula without an end is text', () => {
  assert.deepEqual(kinds('$$ x\n\nmore words'), ['prose']);
});

test('amounts of money are no formulas', () => {
  assert.deepEqual(found('It costs $5 or $6, or $ 7 $.', 'formula'), []);
  assert.deepEqual(found('It costs $5 or $6, and with $x$ more.', 'formula'), ['$x$']);
  assert.deepEqual(found('It costs $x$ and \\(y\\) and $$z$$.', 'formula'), ['$x$', '\\(y\\)', '$$z$$']);
});

test('twice the marks take about twice the time', () => {
  const time = (text) => {
    const start = performance.now();
    parse(text);
    return performance.now() - start;
  };
  for (const unit of ['*a ', '_a', '`', '$a ', '\\[', '*_', '| ', '$$\n', '\\[ x\n', '```\n', '- ', '> ', '1. ', '[a](', '<b>', '*a _b **c ', '|a|\n|-|\n', '1\n']) {
    const [small, large] = [4000, 32_000].map((size) => Math.min(...[1, 2, 3].map(() => time(unit.repeat(size / unit.length)))));
    assert.ok(large < 40 * small + 50, `${JSON.stringify(unit)}: ${small} ms, then ${large} ms for 8 times the text`);
  }
  assert.equal(parse('-'.repeat(80))[0].kind, 'syntax');
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
  assert.deepEqual(found('$$a=1$$, so $$b=2$$', 'formula'), ['$$a=1$$', '$$b=2$$']);
});

test('the end of a shortened text is code only if it is within code', () => {
  assert.equal(openFence('Fix this:\n```python\na = 1'), '```python\n');
  assert.equal(openFence('Fix this:\n```python\na = 1\n```\nnow'), '');
  assert.equal(openFence('no code'), '');
});
