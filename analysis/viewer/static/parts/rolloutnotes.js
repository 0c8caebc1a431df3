/** What applies to rollouts, as pure functions. Notes are kept in a Map from `task/repeat` to what applies. */
/** The most used labels that have a key: 1 to 9. */
export const NUMBERED = 9;
/** What applies to a rollout without notes. */
export const NONE = { labels: [], verdicts: [], texts: [] };

export function keyOf(line) {
  return `${line.task}/${line.repeat}`;
}

/** Whether nothing applies. */
function isEmpty(notes) {
  return !notes.labels.length && !notes.verdicts.length && !notes.texts.length;
}

/** The notes after a response of the server, which has all of them if it is complete, else those that changed. */
export function merged(before, rollouts, complete) {
  const after = complete ? new Map() : new Map(before);
  for (const notes of rollouts) {
    if (isEmpty(notes)) after.delete(keyOf(notes));
    else after.set(keyOf(notes), notes);
  }
  return after;
}

/** The labels of a rollout with everyone who gave them. @returns {{label: string, authors: string[]}[]} */
export function labelsOf(notes) {
  const found = new Map();
  for (const { label, author } of notes.labels) found.set(label, [...(found.get(label) ?? []), author]);
  return [...found].map(([label, authors]) => ({ label, authors }));
}

/** The verdict that counts: the last one of anyone, or null. */
export function overrideOf(notes) {
  return notes.verdicts.at(-1) ?? null;
}

/** Whether the author gave the rollout a label or a verdict. */
export function isLabelledBy(notes, author) {
  return [...notes.labels, ...notes.verdicts].some((one) => one.author === author);
}

/**
 * The index of the next of the shown rollouts that the author has not labelled, or -1. Failed ones are left out, because most
 * of them have no row. The page may show rollouts that their new labels have removed from the list.
 */
export function nextShown(lines, after, notes, author) {
  return lines.findIndex((line, at) => at > after && line.outcome !== 'failed' && !isLabelledBy(notes.get(keyOf(line)) ?? NONE, author));
}

/** The author's record of a label, or null. */
export function ownLabel(notes, label, author) {
  return notes.labels.find((one) => one.label === label && one.author === author) ?? null;
}

/** The records that change a label: added if the author has not given it, else removed. */
export function toggled(notes, label, author) {
  return { kind: ownLabel(notes, label, author) ? 'unlabel' : 'label', label };
}

export function verdictText(verdict) {
  return typeof verdict === 'number' ? `reward ${verdict}` : verdict;
}

/** A verdict as a person types it, or null: correct, wrong, c, w, or a reward. @param {string} text */
export function parseVerdict(text) {
  const word = text.trim().toLowerCase();
  if (['correct', 'c', 'right', 'yes'].includes(word)) return 'correct';
  if (['wrong', 'w', 'x', 'no', 'incorrect'].includes(word)) return 'wrong';
  const number = Number(word.replace(',', '.'));
  return word !== '' && Number.isFinite(number) ? number : null;
}

/** The known labels that contain the text, those that start with it first. @param {{label: string}[]} labels @param {string} text */
export function matchingLabels(labels, text, most = 8) {
  const needle = text.trim().toLowerCase();
  const rank = (label) => (label.toLowerCase().startsWith(needle) ? 0 : 1);
  return labels.map((one) => one.label).filter((label) => label.toLowerCase().includes(needle))
    .sort((a, b) => rank(a) - rank(b)).slice(0, most);
}
