/** The conversation of an episode, in order, with speakers distinguished. */
import { html, useMemo, useState } from '../../vendor/htm-preact.js';
import { Notice } from '../notice.js';
import { Message } from './message.js';

const PAGE_SIZE = 200;

/** @param {{events: any[], current: number | null, show: ((call: number) => void) | null}} props */
export function Conversation({ events, current, show }) {
  const [limit, setLimit] = useState(PAGE_SIZE);
  const [reasoningOpen, setReasoningOpen] = useState(true);
  const calls = useMemo(() => callNumbers(events), [events]);
  if (!events.length) return html`<${Notice} text="This rollout has no recorded conversation." />`;
  const hasReasoning = events.some((event) => event.speaker === 'reasoning');
  return html`
    ${hasReasoning && html`<p><button aria-pressed=${reasoningOpen} onClick=${() => setReasoningOpen(!reasoningOpen)}>
      Reasoning ${reasoningOpen ? 'open' : 'closed'}</button></p>`}
    ${events.slice(0, limit).map((event, i) => html`<${Message} key=${i} event=${event} call=${calls[i]}
      here=${calls[i] !== null && calls[i] === current} show=${show} reasoningOpen=${reasoningOpen} />`)}
    ${events.length > limit && html`<button onClick=${() => setLimit(limit + 5 * PAGE_SIZE)}>
      Show more (${events.length - limit} left)</button>`}`;
}

/** For each event, the number of the tool call that it is or whose result it is; otherwise null. */
function callNumbers(events) {
  const numbers = new Map();
  let count = 0;
  return events.map((event) => {
    if (event.speaker === 'call') {
      numbers.set(event.call, count);
      count += 1;
      return count - 1;
    }
    return event.speaker === 'result' ? (numbers.get(event.call) ?? null) : null;
  });
}
