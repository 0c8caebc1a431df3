/** The types in the comments of the viewer's scripts, which TypeScript checks. */
import assert from 'node:assert/strict';
import { readdirSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { join } from 'node:path';
import test from 'node:test';
import ts from 'typescript';

const STATIC = fileURLToPath(new URL('../../analysis/viewer/static/', import.meta.url));
const OPTIONS = {
  ...{ allowJs: true, checkJs: true, noEmit: true, lib: ['lib.es2023.d.ts', 'lib.dom.d.ts', 'lib.dom.iterable.d.ts'] },
  ...{ target: ts.ScriptTarget.ES2022, module: ts.ModuleKind.ES2022, moduleResolution: ts.ModuleResolutionKind.Bundler },
  ...{ noImplicitThis: true, noImplicitReturns: true, noUnusedLocals: true, noUnusedParameters: true },
  ...{ strictBindCallApply: true, strictFunctionTypes: true, types: [] },
};

test('the scripts agree with their types', () => {
  const scripts = readdirSync(STATIC, { recursive: true }).filter((name) => name.endsWith('.js') && !name.startsWith('vendor'));
  const program = ts.createProgram(scripts.map((name) => join(STATIC, name)), OPTIONS);
  const own = ts.getPreEmitDiagnostics(program).filter(({ file }) => !file?.fileName.includes('/vendor/'));
  assert.ok(scripts.length > 30);
  assert.equal(ts.formatDiagnostics(own, { getCurrentDirectory: () => STATIC, getCanonicalFileName: String, getNewLine: () => '\n' }), '');
});
