/** One model call's tokens as a strip of ids, with a description of the token at the pointer or keyboard position. */
import { html, useState } from '../../vendor/htm-preact.js';
import { escapeInvisible } from '../../text.js';
import { count, percent, plain } from '../../formatting.js';
import { useSelectedToken } from './selectedtoken.js';
import { classOf } from './tokenclasses.js';

const MAX_PROMPT = 24;
const MAX_GENERATED = 600;

/** @param {{prompt: number[], seen: number, generated: number[], logProbs: number[], texts: string[], trained: boolean}} props `texts` may be empty */
export function TokenStrip({ prompt, seen, generated, logProbs, texts, trained }) {
  const [expanded, setExpanded] = useState(false);
  const from = expanded ? 0 : Math.max(seen, prompt.length - MAX_PROMPT);
  const until = expanded ? generated.length : Math.min(generated.length, MAX_GENERATED);
  const cut = from > 0 || until < generated.length;
  const describe = (i) => {
    const position = i - prompt.length;
    if (position < 0) return `prompt token ${i}: id ${prompt[i]}, masked`;
    const text = texts[position] ? ` ${escapeInvisible(JSON.stringify(texts[position]))}` : '';
    return `generated token ${position}: id ${generated[position]}${text}, ${likelihood(logProbs[position])}, ${trained ? 'trained on' : 'masked'}`;
  };
  const last = prompt.length + until - 1;
  const [at, , handlers] = useSelectedToken({ first: from, last, start: prompt.length - 1 });
  const chip = (i, id, kind) => html`<span class=${`token ${kind} ${i === at ? 'at' : ''}`} data-at=${i} title=${describe(i)}>${id}</span>`;
  return html`
    <div class="ids" tabindex="0" role="group" aria-label="Token ids; use the arrow keys to move"
      ...${handlers}>
      ${from > 0 && html`<span class="soft small">${count(from)} earlier tokens … </span>`}
      ${prompt.slice(from).map((id, i) => chip(from + i, id, 'masked'))}
      ${generated.slice(0, until).map((id, i) => chip(prompt.length + i, id, trained ? classOf(logProbs[i]) : 'masked'))}
      ${generated.length > until && html`<span class="soft small"> … ${count(generated.length - until)} more</span>`}
    </div>
    <div class="foot"><p class="readout small number" aria-live="polite">${at >= 0 ? describe(at) : '\u00a0'}</p>
    ${(cut || expanded) && html`<button class="quiet" onClick=${() => setExpanded(!expanded)}>
      ${expanded ? 'Show less' : `Show all ${count(prompt.length + generated.length)} tokens`}</button>`}</div>`;
}

function likelihood(logProb) {
  return typeof logProb === 'number' ? `log-probability ${plain(logProb)}, ${percent(Math.exp(logProb))}` : 'no log-probability';
}
