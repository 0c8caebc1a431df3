/** One model call's tokens as a strip of ids, with a description of the token at the pointer or keyboard position. */
import { html, useState } from '../../vendor/htm-preact.js';
import { count, percent, plain } from '../../formatting.js';

/** The lower log-probability bound of each class. Less likely tokens also have a stronger underline. */
export const CLASSES = [
  { name: 'sure', from: Math.log(0.9), says: 'over 90%' },
  { name: 'likely', from: Math.log(0.5), says: '50 to 90%' },
  { name: 'open', from: Math.log(0.1), says: '10 to 50%' },
  { name: 'unlikely', from: Math.log(0.01), says: '1 to 10%' },
  { name: 'rare', from: -Infinity, says: 'under 1%' },
];
const MOST_PROMPT = 24;
const MOST_GENERATED = 600;

/** @param {number | undefined} logProb */
function classOf(logProb) {
  if (typeof logProb !== 'number' || Number.isNaN(logProb)) return 'unknown';
  return CLASSES.find((one) => logProb >= one.from).name;
}

/** @param {{prompt: number[], seen: number, generated: number[], logProbs: number[], trained: boolean}} props */
export function TokenStrip({ prompt, seen, generated, logProbs, trained }) {
  const [at, setAt] = useState(-1);
  const [whole, setWhole] = useState(false);
  const from = whole ? 0 : Math.max(seen, prompt.length - MOST_PROMPT);
  const until = whole ? generated.length : Math.min(generated.length, MOST_GENERATED);
  const cut = from > 0 || until < generated.length;
  const says = (i) => {
    const made = i - prompt.length;
    if (made < 0) return `prompt token ${i}: id ${prompt[i]}, masked`;
    return `generated token ${made}: id ${generated[made]}, ${likelihood(logProbs[made])}, ${trained ? 'trained on' : 'masked'}`;
  };
  const point = (event) => {
    const found = event.target.closest('[data-at]');
    if (found) setAt(Number(found.dataset.at));
  };
  const move = (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    event.preventDefault();
    setAt(Math.max(from, Math.min(prompt.length + until - 1, (at < 0 ? prompt.length - 1 : at) + by)));
  };
  const chip = (i, id, kind) => html`<span class=${`token ${kind} ${i === at ? 'at' : ''}`} data-at=${i} title=${says(i)}>${id}</span>`;
  return html`
    <div class="ids" tabindex="0" role="group" aria-label="Token ids; use the arrow keys to move"
      onMouseOver=${point} onClick=${point} onKeyDown=${move}>
      ${from > 0 && html`<span class="soft small">${count(from)} before … </span>`}
      ${prompt.slice(from).map((id, i) => chip(from + i, id, 'masked'))}
      ${generated.slice(0, until).map((id, i) => chip(prompt.length + i, id, trained ? classOf(logProbs[i]) : 'masked'))}
      ${generated.length > until && html`<span class="soft small"> … ${count(generated.length - until)} more</span>`}
    </div>
    <div class="foot"><p class="readout small number" aria-live="polite">${at >= 0 ? says(at) : '\u00a0'}</p>
    ${(cut || whole) && html`<button class="quiet" onClick=${() => setWhole(!whole)}>
      ${whole ? 'Show less' : `Show all ${count(prompt.length + generated.length)} tokens`}</button>`}</div>`;
}

function likelihood(logProb) {
  return typeof logProb === 'number' ? `log-probability ${plain(logProb)}, ${percent(Math.exp(logProb))}` : 'no log-probability';
}
