/** Which filters of the list are active, as a pure function. */

const NO_FILTERS = new Set(['sort', 'start', 'columns', 'facet']);

/** The number of conditions in the address; the two ends of a range are one. @param {URLSearchParams} query */
export function activeFilters(query) {
  const names = [...query].filter(([name, value]) => value && !NO_FILTERS.has(name)).map(([name]) => name.replace(/^(min|max)_/, ''));
  return new Set(names).size;
}
