/** The notes of a run: loaded, polled for what others write, and written. All components of a page share one poll. */
import { useEffect, useState } from '../vendor/htm-preact.js';
import { IS_EXPORT, loadJson, postJson } from '../data.js';
import { keep, kept } from '../storage.js';

const POLL_MS = 4000;
const AUTHOR = 'rollyard-author';

const stores = new Map();

class NoteStore {
  constructor(run) {
    this.run = run;
    this.notes = new Map();
    this.view = null;
    this.error = null;
    /** The name that this browser writes under; '' for that of the user who started the viewer. */
    this.own = kept(AUTHOR) ?? '';
    this.written = [];
    this.listeners = new Set();
    this.timer = 0;
    this.loading = null;
  }

  get author() {
    return this.own || this.view?.author || '';
  }

  get whyReadOnly() {
    return this.view?.why_read_only ?? '';
  }

  subscribe(listener) {
    this.listeners.add(listener);
    if (this.listeners.size === 1) this.poll();
    return () => {
      this.listeners.delete(listener);
      if (!this.listeners.size) clearTimeout(this.timer);
    };
  }

  changed() {
    for (const listener of this.listeners) listener();
  }

  poll() {
    clearTimeout(this.timer);
    const again = () => {
      if (this.listeners.size && !IS_EXPORT) this.timer = setTimeout(() => this.poll(), POLL_MS);
    };
    return document.hidden && this.view ? again() : this.load().finally(again);
  }

  async load() {
    if (this.loading) await this.loading;
    this.loading = this.request();
    await this.loading;
    this.loading = null;
  }

  async request() {
    const since = this.view?.version ?? '';
    try {
      const view = await loadJson(`runs/${this.run}/notes${since && `?since=${since}`}`);
      const same = (name) => view[name] === this.view?.[name];
      const isNew = !view.version || view.complete || this.error || !['version', 'why_read_only', 'lost', 'ignored', 'error'].every(same);
      this.notes = view.rollouts.length || view.complete ? merged(this.notes, view.rollouts, view.complete) : this.notes;
      this.view = view;
      this.error = null;
      if (isNew) this.changed();
    } catch (error) {
      this.error = error;
      this.changed();
    }
  }

  /** Writes a record about a rollout; throws an error with a readable message. */
  async write({ task, repeat }, record) {
    if (this.whyReadOnly) throw new Error(`Notes cannot be written: ${this.whyReadOnly}.`);
    const body = { task, repeat, ...record, ...(this.own ? { author: this.own } : {}) };
    const { id, rollout } = await postJson(`runs/${this.run}/notes`, body);
    if (record.kind !== 'removal') this.written.push({ id, task, repeat });
    this.notes = merged(this.notes, [rollout], false);
    this.changed();
    await this.load();
  }

  /** Removes the last record that was written in this tab; returns its rollout, or null if there is none. */
  async undo() {
    const last = this.written.pop(); // before anything is awaited, so that a second call undoes the record before it
    if (!last) return null;
    try {
      await this.write(last, { kind: 'removal', removes: last.id });
    } catch (error) {
      this.written.push(last);
      throw error;
    }
    return last;
  }

  rename(author) {
    this.own = author.trim();
    keep(AUTHOR, this.own);
    this.changed();
  }
}

/** The notes of a run; the component is rendered again when they change. @param {string | number} run @returns {NoteStore} */
export function useNotes(run) {
  const key = String(run);
  if (!stores.has(key)) stores.set(key, new NoteStore(key));
  const store = stores.get(key);
  const [, update] = useState(0);
  useEffect(() => store.subscribe(() => update((count) => count + 1)), [store]);
  return store;
}

/** The most used labels that have a key: 1 to 9. */
export const NUMBERED = 9;
/** What applies to a rollout without notes. */
export const NONE = { labels: [], verdicts: [], texts: [] };

export const keyOf = (line) => `${line.task}/${line.repeat}`;

/** The notes after a response of the server, which has all of them if it is complete, else those that changed. */
export function merged(before, rollouts, complete) {
  const after = complete ? new Map() : new Map(before);
  for (const notes of rollouts) {
    if (!notes.labels.length && !notes.verdicts.length && !notes.texts.length) after.delete(keyOf(notes));
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
export const overrideOf = (notes) => notes.verdicts.at(-1) ?? null;

export function ownLabel(notes, label, author) {
  return notes.labels.find((one) => one.label === label && one.author === author) ?? null;
}

/** The records that change a label: added if the author has not given it, else removed. */
export const toggled = (notes, label, author) => ({ kind: ownLabel(notes, label, author) ? 'unlabel' : 'label', label });

export const verdictText = (verdict) => (typeof verdict === 'number' ? `reward ${verdict}` : verdict);

/** A verdict as a person types it, or null: correct, wrong, c, w, or a reward. @param {string} text */
export function parseVerdict(text) {
  const word = text.trim().toLowerCase();
  if (['correct', 'c', 'right', 'yes'].includes(word)) return 'correct';
  if (['wrong', 'w', 'x', 'no', 'incorrect'].includes(word)) return 'wrong';
  const number = Number(word.replace(',', '.'));
  return word !== '' && Number.isFinite(number) ? number : null;
}
