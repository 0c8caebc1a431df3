/** The tokens of an exported page: orders, filters and pages those that the file contains, as the server does. */

const RANKS = {
  surprisal: (group) => -group.surprisal,
  log_prob: (group) => group.log_prob,
  entropy: (group) => -(group.entropy ?? -Infinity),
  rare: (group) => -group.rare,
  count: (group) => -group.count,
};

/** @param {any} view @param {URLSearchParams} params */
export function exportedTokens(view, params) {
  const sort = Object.hasOwn(RANKS, params.get('sort') ?? '') ? params.get('sort') : view.sort;
  const least = Number(params.get('least')) || view.least;
  const needle = (params.get('q') ?? '').toLowerCase();
  const start = Number(params.get('start')) || 0;
  const name = (group) => (group.text || String(group.id ?? '')).toLowerCase();
  const found = view.groups
    .filter((group) => group.count >= least && name(group).includes(needle) && (sort !== 'entropy' || group.entropy !== null))
    .sort((a, b) => RANKS[sort](a) - RANKS[sort](b));
  const groups = found.slice(start, start + (Number(params.get('limit')) || 50));
  return { ...view, sort, least, start, total: found.length, groups };
}
