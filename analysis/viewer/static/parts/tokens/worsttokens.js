/** The least likely tokens of a rollout as a list; a click goes to the token. */
import { html, useMemo, useState } from '../../vendor/htm-preact.js';
import { visible } from '../../text.js';
import { count, percent, plain } from '../../formatting.js';
import { classOf } from '../rollout/tokenclasses.js';
import { leastLikely } from './worst.js';

const FEW = 10;
const MANY = 100;

/** @param {{events: any[], go: (call: number, position: number) => void}} props */
export function WorstTokens({ events, go }) {
  const [most, setMost] = useState(FEW);
  const all = useMemo(() => leastLikely(events, MANY), [events]);
  if (!all.length) return null;
  const hasAlternatives = all.some((one) => one.tops.length > 0);
  return html`<section class="block worst" aria-label="Least likely tokens"><h2>Least likely tokens</h2>
    <div class="table" tabindex="0" role="region" aria-label="Table of the least likely tokens"><table>
      <thead><tr><th scope="col">token in context</th><th scope="col">probability</th><th scope="col">log-probability</th>
        ${hasAlternatives && html`<th scope="col" class="words">most likely instead</th>`}<th scope="col">turn</th></tr></thead>
      <tbody>${all.slice(0, most).map((one) => html`<tr key=${`${one.call}.${one.position}`}>
        <th scope="row"><button class="quiet context" onClick=${() => go(one.call, one.position)}
          aria-label=${`Go to token ${one.position + 1} of turn ${one.turn}`}><${InContext} one=${one} /></button></th>
        <td>${percent(Math.exp(Math.min(0, one.logProb)), one.logProb < Math.log(0.001) ? 3 : 1)}</td><td>${plain(one.logProb)}</td>
        ${hasAlternatives && html`<td class="words"><${Alternatives} one=${one} /></td>`}
        <td>${one.turn}</td></tr>`)}</tbody>
    </table></div>
    ${all.length > FEW && html`<button class="quiet" onClick=${() => setMost(most === FEW ? MANY : FEW)}>
      ${most === FEW ? `Show ${count(all.length)}` : 'Show less'}</button>`}
  </section>`;
}

function InContext({ one }) {
  const marked = (text) => visible(text.replaceAll('\n', '↵'));
  if (!one.text) return html`<span class=${`token ${classOf(one.logProb)}`}>id ${one.id}</span>`;
  return html`<bdi class="mono"><span class="soft">${marked(one.before)}</span><span class=${`token ${classOf(one.logProb)}`}>${marked(one.text)}</span><span class="soft">${marked(one.after)}</span></bdi>`;
}

function Alternatives({ one }) {
  const others = one.tops.filter(([text]) => text !== one.text).slice(0, 3);
  return others.map(([text, logProb], i) => html`${i > 0 && ', '}<code class="piece">${visible(JSON.stringify(text))}</code> ${percent(Math.exp(Math.min(0, logProb)))}`);
}
