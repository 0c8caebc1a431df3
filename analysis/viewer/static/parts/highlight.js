/** Finds the parts of code: keywords, strings, comments and so on. */
import core from '../vendor/highlight/core.js';
import bash from '../vendor/highlight/bash.js';
import c from '../vendor/highlight/c.js';
import cpp from '../vendor/highlight/cpp.js';
import diff from '../vendor/highlight/diff.js';
import go from '../vendor/highlight/go.js';
import java from '../vendor/highlight/java.js';
import javascript from '../vendor/highlight/javascript.js';
import json from '../vendor/highlight/json.js';
import python from '../vendor/highlight/python.js';
import rust from '../vendor/highlight/rust.js';
import sql from '../vendor/highlight/sql.js';
import typescript from '../vendor/highlight/typescript.js';
import xml from '../vendor/highlight/xml.js';
import yaml from '../vendor/highlight/yaml.js';

const MAX_LENGTH = 20_000;
/** The time of several grammars grows with the square of the length of a word. Code has no such words. */
const LONG_WORD = /\S{500}/;
const LANGUAGES = { bash, c, cpp, diff, go, java, javascript, json, python, rust, sql, typescript, xml, yaml };
const instance = core.newInstance();
for (const [name, grammar] of Object.entries(LANGUAGES)) instance.registerLanguage(name, grammar);

/** @typedef {{scope: string, children: (Part | string)[]}} Part */

/** The code as a tree of scopes (`keyword`, `string`, ...), or null if it is long, contains a very long word, or is in an unknown language.
 * @param {string} text @param {string} language a name or an alias, such as `py` @returns {Part | null} */
export function highlighted(text, language) {
  if (!language || text.length > MAX_LENGTH || LONG_WORD.test(text) || !instance.getLanguage(language)) return null;
  const { errorRaised, _emitter: emitter } = instance.highlight(text, { language, ignoreIllegals: true });
  // The tree from which highlight.js would write HTML. It has no public name; a test fails if a new version moves it.
  const tree = errorRaised || !emitter?.rootNode ? null : simplified(emitter.rootNode);
  return tree && textOf(tree) === text ? tree : null;
}

const textOf = (part) => (typeof part === 'string' ? part : part.children.map(textOf).join(''));

/** A scope's first name only, with letters only: `title.function` is `title`. */
function simplified({ scope = '', language = '', children }) {
  return {
    scope: (language ? 'language' : String(scope).split('.')[0]).replace(/[^a-z_-]/gi, '').replaceAll('_', '-'),
    children: children.map((child) => (typeof child === 'string' ? child : simplified(child))),
  };
}
