/** The structure of an episode's conversation: its turns, and the examples in its prompt. Without DOM. */
const MAX_WORDS = 40;

/** One entry for the prompt and one for each turn. `index` is that of the turn's first event. @param {any[]} events
 * @returns {{turn: number, index: number, calls: string[], reward: number | null, words: string}[]} */
export function outlineOf(events) {
  /** @type {ReturnType<typeof outlineOf>} */
  const entries = [];
  const byTurn = new Map();
  events.forEach((event, index) => {
    let entry = byTurn.get(event.turn);
    if (!entry) {
      entry = { turn: event.turn, index, calls: [], reward: null, words: '' };
      byTurn.set(event.turn, entry);
      entries.push(entry);
    }
    if (event.speaker === 'call') entry.calls.push(event.name);
    if (event.reward !== null && event.reward !== undefined) entry.reward = (entry.reward ?? 0) + event.reward;
    if (event.speaker === 'answer' && event.turn > 0 && !entry.words) entry.words = shortened(event.text);
  });
  return entries;
}

function shortened(text) {
  const words = text.replace(/[#*_`$]/g, '').trim().replace(/\s+/g, ' ');
  return words.length > MAX_WORDS ? `${words.slice(0, MAX_WORDS)}…` : words;
}

/** The names of calls with the number of repetitions: `step ×3, look`. @param {string[]} names */
export function countedNames(names) {
  const counts = new Map();
  for (const name of names) counts.set(name, (counts.get(name) ?? 0) + 1);
  return [...counts].map(([name, times]) => (times > 1 ? `${name} ×${times}` : name)).join(', ');
}

/** The range of events in the prompt that are few-shot examples: all messages before the last one of the user, if the prompt contains
 * answers. `[start, end)`; empty if there are none. @param {any[]} events @returns {[number, number]} */
export function fewShotRange(events) {
  const firstTurn = events.findIndex((event) => event.turn > 0);
  const prompt = firstTurn < 0 ? events : events.slice(0, firstTurn);
  const last = prompt.findLastIndex((event) => event.speaker === 'user');
  const first = prompt.findIndex((event) => event.speaker !== 'system');
  const hasAnswers = prompt.slice(Math.max(0, first), Math.max(0, last)).some((event) => event.speaker === 'answer' || event.speaker === 'call');
  return last > 0 && hasAnswers ? [first, last] : [0, 0];
}
