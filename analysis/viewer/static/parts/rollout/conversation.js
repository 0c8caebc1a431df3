/** The conversation of an episode, in order, with speakers distinguished. */
import { html, useMemo, useState } from '../../vendor/htm-preact.js';
import { pluralize } from '../../formatting.js';
import { matchPositions } from '../../textmatches.js';
import { Notice } from '../notice.js';
import { fewShotRange } from './episodeoutline.js';
import { Message } from './message.js';
import { piecesOfConversation } from './tokenpieces.js';
import { TokenLegend } from './tokentext.js';

const PAGE_SIZE = 200;

/**
 * `wanted`: the index of an event that is shown in any case.
 * @param {{events: any[], current: number | null, show: ((call: number) => void) | null, reading: import('./message.js').Reading, wanted: number}} props
 */
export function Conversation({ events, current, show, reading, wanted }) {
  const [limit, setLimit] = useState(PAGE_SIZE);
  const [reasoningOpen, setReasoningOpen] = useState(true);
  const calls = useMemo(() => callNumbers(events), [events]);
  const pieces = useMemo(() => (reading.probabilities ? piecesOfConversation(events) : null), [events, reading.probabilities]);
  const [from, until] = useMemo(() => fewShotRange(events), [events]);
  const firstFound = useMemo(() => events.findIndex((event) => isFound(event, reading.find)), [events, reading.find]);
  const lastFound = useMemo(() => events.findLastIndex((event) => isFound(event, reading.find)), [events, reading.find]);
  if (!events.length) return html`<${Notice} text="This rollout has no recorded conversation." />`;
  const hasReasoning = events.some((event) => event.speaker === 'reasoning');
  const end = Math.max(limit, wanted + 1, lastFound + 1);
  const message = (event, i) => html`<${Message} key=${i} index=${i} event=${event} call=${calls[i]} here=${calls[i] !== null && calls[i] === current}
    show=${show} reasoningOpen=${reasoningOpen} reading=${reading} pieces=${pieces?.[i] ?? null} />`;
  const messages = events.slice(0, end).map(message);
  const examples = messages.slice(from, until);
  const examplesOpen = (firstFound >= from && firstFound < until) || (wanted >= from && wanted < until);
  return html`
    ${hasReasoning && html`<p><button aria-pressed=${reasoningOpen} onClick=${() => setReasoningOpen(!reasoningOpen)}>
      Reasoning ${reasoningOpen ? 'open' : 'closed'}</button></p>`}
    ${reading.probabilities && html`<${TokenLegend} />`}
    ${messages.slice(0, from)}
    ${examples.length > 0 && html`<details class="examples" open=${examplesOpen}>
      <summary class="small soft">Examples in the prompt: ${pluralize(until - from, 'message')}</summary>${examples}
    </details>`}
    ${messages.slice(until)}
    ${events.length > end && html`<button onClick=${() => setLimit(end + 5 * PAGE_SIZE)}>
      Show more (${events.length - end} left)</button>`}`;
}

function isFound(event, find) {
  return find !== '' && matchPositions(event.text, find, 1).length > 0;
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
