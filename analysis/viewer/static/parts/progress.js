/** The progress of a collection, from its status file. */
import { html } from '../vendor/htm-preact.js';
import { count, percent, seconds } from '../formatting.js';
import { Name } from '../text.js';

/** @param {{status: any}} props */
export function Progress({ status }) {
  const running = status.state === 'running';
  const share = status.expected ? status.measured / status.expected : 0;
  const failures = Object.entries(status.failures);
  return html`<div class="progress" role=${running ? 'status' : undefined}>
    <p class="small soft">
      <span class=${`badge ${['incomplete', 'stopped'].includes(status.state) ? 'bad' : ''}`}>${status.state}</span>${' '}
      ${running && html`<progress max="1" value=${share} aria-label="Collected"></progress> `}
      ${count(status.measured)} of ${count(status.expected)} rollouts (${percent(share, 0)})
      ${running && `, ${count(status.in_flight)} in flight, ${status.rollouts_per_s.toFixed(1)} per second`}
      ${running && status.eta_s !== null && `, ${seconds(status.eta_s)} left`}
      ${status.failed > 0 && html`, <span class="bad">${count(status.failed)} failed</span>`}
      ${failures.length > 0 && html`, failed attempts: ${failures.map(([kind, times], i) => html`
        ${i > 0 && ', '}<${Name} value=${kind} /> ${count(times)}`)}`}
    </p>
    ${status.note && html`<p class="small"><${Name} value=${status.note} /></p>`}
  </div>`;
}
