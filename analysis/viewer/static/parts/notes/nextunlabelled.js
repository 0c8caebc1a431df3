/** Goes to the next rollout of a list that the author of this page has not labelled. */
import { loadJson } from '../../data.js';
import { changed } from '../../route.js';

/**
 * @param {any} store  that of `useNotes`
 * @param {URLSearchParams} query  the list's
 * @param {{task?: number, repeat?: number, at?: number}} here  the present rollout, and its place in the list
 * @param {(message: string) => void} say
 * @param {(found: {task: number, repeat: number, at: number}) => void} goTo
 */
export async function nextUnlabelled(store, query, here, say, goTo) {
  const place = { after_task: here.task ?? null, after_repeat: here.repeat ?? null, after: Number.isFinite(here.at) ? here.at : null };
  const request = changed(query, { ...place, author: store.author, facet: null, start: null, columns: null, match: null });
  try {
    const found = await loadJson(`runs/${store.run}/notes/next?${request}`);
    say(found.next ? `${found.left} of ${found.total} not labelled yet` : `You have labelled all ${found.total} rollouts of this list.`);
    if (found.next) goTo(found.next);
  } catch (error) {
    say(error.message);
  }
}
