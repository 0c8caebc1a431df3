/** The runs of the overview: opened files, and the files of a training run, which are opened when a page shows them. */
/** The opened run with a number, or undefined. @param {any} overview @param {string | number} number */
export const runOf = (overview, number) => overview.runs.find((run) => run.run === Number(number));

/** Whether a run's file is written or read right now. @param {any} run */
export const isGrowing = (run) => run.status?.state === 'running' || run.indexed < run.size - run.torn;

/** A text that changes with the content of a run's file; '' while it grows, when pages ask regularly. @param {any} run */
export const versionOf = (run) => (isGrowing(run) ? '' : [run.size, run.measured, run.failed].join(' '));

/** Whether there is a run with this number, opened or not. @param {any} overview @param {number} number */
export function runExists(overview, number) {
  const { training } = overview;
  const steps = number % 2 ? training?.evaluations : training?.rollouts;
  return runOf(overview, number) !== undefined || Boolean(steps?.includes(Math.floor(number / 2)));
}

/** The number of a step's rollouts. @param {number} step */
export const rolloutsOf = (step) => 2 * step;

/** The number of the evaluation after a step. @param {number} step */
export const evaluationOf = (step) => 2 * step + 1;

/** The run that the navigation opens: the first file, or the newest step of a training run; null if there is none. @param {any} overview */
export function mainRun(overview) {
  const newest = overview?.training?.rollouts.at(-1);
  if (newest !== undefined) return rolloutsOf(newest);
  return overview?.runs[0]?.run ?? null;
}

/** Two runs worth comparing: the first two files, or the first and the last evaluation; null if there are none. @param {any} overview */
export function comparedRuns(overview) {
  if (!overview) return null;
  const { training, runs } = overview;
  const found = training ? [training.evaluations[0], training.evaluations.at(-1)].map(evaluationOf) : runs.slice(0, 2).map((run) => run.run);
  return found.length === 2 && found[0] < found[1] ? found : null;
}

/** Whether files are the steps of a series: of a training run, or with known steps. @param {any} overview */
export function hasSeries(overview) {
  const { training } = overview ?? {};
  return Boolean(overview?.series) || [training?.evaluations, training?.rollouts].some((steps) => steps?.length > 1);
}

/** All runs that can be chosen, by number and name. @param {any} overview @returns {{run: number, name: string}[]} */
export function choices(overview) {
  const { training, runs } = overview;
  if (!training) return runs;
  const evaluations = training.evaluations.map((step) => ({ run: evaluationOf(step), name: `evaluation after step ${step}` }));
  return [...evaluations, ...runs.filter((run) => run.run % 2 === 0)];
}

/** The numbers of the runs that an address names. @param {string[]} path @returns {string[]} */
export function wantedRuns(path) {
  const places = { runs: [1], compare: [1, 2], 'side-by-side': [1, 4] };
  const named = (places[path[0]] ?? []).map((place) => path[place] ?? '');
  return named.filter((number) => /^\d{1,9}$/.test(number));
}
