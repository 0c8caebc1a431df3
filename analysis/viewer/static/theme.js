/** The theme: the system's preference unless the user chose one. */
const KEY = 'rollyard-theme';
const ORDER = ['auto', 'light', 'dark'];

/** @returns {string} */
export function theme() {
  try {
    const kept = localStorage.getItem(KEY);
    return ORDER.includes(kept) ? kept : 'auto';
  } catch {
    return 'auto'; // a page opened from a file may have no storage
  }
}

/** Applies the chosen theme. */
export function applyTheme() {
  document.documentElement.dataset.theme = theme();
}

/** The next of auto, light, dark. */
export function nextTheme() {
  const next = ORDER[(ORDER.indexOf(theme()) + 1) % ORDER.length];
  try {
    localStorage.setItem(KEY, next);
  } catch {
    // without storage the choice cannot be kept
  }
  document.documentElement.dataset.theme = next;
  dispatchEvent(new Event('themechange'));
  return next;
}
