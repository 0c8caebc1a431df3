/** What this browser remembers. Without storage, as in some pages opened from a file, nothing is kept. */
const browserStorage = () => localStorage;

/** The text that is kept under a key, or null. @param {string} key */
export function kept(key, storage = browserStorage) {
  try {
    return storage().getItem(key);
  } catch {
    return null;
  }
}

/** Keeps a text, and returns whether the browser did. @param {string} key @param {string} text */
export function keep(key, text, storage = browserStorage) {
  try {
    storage().setItem(key, text);
    return true;
  } catch {
    return false;
  }
}
