/** The conversation of an episode, in order, with speakers distinguished. */
import { html, useMemo, useState } from '../../vendor/htm-preact.js';
import { Notice } from '../notice.js';
import { Message } from './message.js';

const AT_ONCE = 200;

/** @param {{events: any[], current: number | null, show: ((call: number) => void) | null}} props */
export function Conversation({ events, current, show }) {
  const [most, setMost] = useState(AT_ONCE);
  const [thoughts, setThoughts] = useState(true);
  const calls = useMemo(() => callOf(events), [events]);
  if (!events.length) return html`<${Notice} says="This rollout has no recorded conversation." />`;
  const thinks = events.some((event) => event.speaker === 'reasoning');
  return html`
    ${thinks && html`<p><button aria-pressed=${thoughts} onClick=${() => setThoughts(!thoughts)}>
      Reasoning ${thoughts ? 'open' : 'closed'}</button></p>`}
    ${events.slice(0, most).map((event, i) => html`<${Message} key=${i} event=${event} call=${calls[i]}
      here=${calls[i] !== null && calls[i] === current} show=${show} thoughts=${thoughts} />`)}
    ${events.length > most && html`<button onClick=${() => setMost(most + 5 * AT_ONCE)}>
      Show more (${events.length - most} left)</button>`}`;
}

/** For each event, the number of the tool call that it is or whose result it is; otherwise null. */
function callOf(events) {
  const numbers = new Map();
  let made = 0;
  return events.map((event) => {
    if (event.speaker === 'call') {
      numbers.set(event.call, made);
      made += 1;
      return made - 1;
    }
    return event.speaker === 'result' ? (numbers.get(event.call) ?? null) : null;
  });
}
