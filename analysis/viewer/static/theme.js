/** The theme: the system's preference unless the user chose one. */
import { keep, kept } from './storage.js';

const KEY = 'rollyard-theme';
const ORDER = ['auto', 'light', 'dark'];

/** @returns {string} */
export function theme() {
  const chosen = kept(KEY);
  return ORDER.includes(chosen) ? chosen : 'auto';
}

export function applyTheme() {
  document.documentElement.dataset.theme = theme();
}

/** The next of auto, light, dark. */
export function nextTheme() {
  const next = ORDER[(ORDER.indexOf(theme()) + 1) % ORDER.length];
  keep(KEY, next);
  document.documentElement.dataset.theme = next;
  dispatchEvent(new Event('themechange'));
  return next;
}
