/** One event of a conversation. */
import { html, useMemo, useState } from '../../vendor/htm-preact.js';
import { Name, Text } from '../../text.js';
import { pluralize, signed } from '../../formatting.js';
import { Parsed, parseObject } from './parsed.js';

const TITLES = {
  system: 'System', user: 'User', reasoning: 'Reasoning', answer: 'Answer', call: 'Tool call', result: 'Result', other: 'Other',
};

/** Lines shown initially. */
const LINES = { system: 3, call: 25, result: 25 };

/**
 * Shows arguments and results that are a JSON object by field; a button shows the original text.
 * @param {{event: any, call: number | null, here: boolean, show: ((call: number) => void) | null, reasoningOpen: boolean}} props
 */
export function Message({ event, call, here, show, reasoningOpen }) {
  const { speaker } = event;
  const canShow = show && call !== null;
  const tool = speaker === 'call' || speaker === 'result';
  const fields = useMemo(() => (tool ? parseObject(event.text) : null), [event]);
  const [original, setOriginal] = useState(false);
  return html`<article class=${`event ${speaker} ${here ? 'here' : ''}`} tabindex="-1" data-call=${speaker === 'call' ? call : undefined}
    aria-label=${`${TITLES[speaker] ?? speaker}${event.turn ? `, turn ${event.turn}` : ''}`} aria-current=${here ? 'step' : undefined}>
    <header>
      <strong class="speaker">${TITLES[speaker] ?? speaker}</strong>
      ${event.name && html`<code><${Name} value=${event.name} /></code>`}
      ${event.reward !== null && html`<span class="badge number">reward ${signed(event.reward)}</span>`}
      ${event.tokens && html`<span class="small soft">${pluralize(event.tokens.generated.length, 'token')}</span>`}
      <span class="where small soft">
        ${fields && html`<button class="quiet as" aria-pressed=${original} onClick=${() => setOriginal(!original)}>Original text</button>`}
        ${canShow && speaker === 'call' && html`<button class="quiet" onClick=${() => show(call)}>Show on the board</button>`}
        ${event.turn > 0 && speaker !== 'result' && html`<span class="number">turn ${event.turn}</span>`}
      </span>
    </header>
    ${speaker === 'reasoning'
      ? html`<details open=${reasoningOpen}>
          <summary class="small soft">${pluralize(event.text.length, 'character')}</summary><${Text} value=${event.text} lines=${25} />
        </details>`
      : fields && !original
        ? html`<${Parsed} value=${fields} />`
        : html`<${Text} value=${event.text} kind=${tool ? 'mono' : 'prose'} lines=${LINES[speaker] ?? 60} />`}
  </article>`;
}
