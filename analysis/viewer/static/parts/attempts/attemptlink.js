/** Addresses of failed attempts. */
import { link } from '../../route.js';

/** @param {number} run @param {{task: number, repeat: number, at: number}} attempt */
export function attemptLink(run, { task, repeat, at }) {
  return link(['runs', run, 'attempts', task, repeat, at]);
}

/** The list of failed attempts. @param {number} run @param {Record<string, string>} [query] */
export function attemptsLink(run, query = {}) {
  return link(['runs', run, 'attempts'], query);
}

/** The opened run with the file of a collection, or undefined. @param {any} overview @param {string} output */
export function runOfOutput(overview, output) {
  return overview.runs.find((run) => run.absolute_path === output);
}
