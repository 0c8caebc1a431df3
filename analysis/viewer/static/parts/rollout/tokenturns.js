/** The tokens of an episode's model calls: masked prompt tokens, and generated tokens with their log-probabilities. */
import { html, useMemo, useState } from '../../vendor/htm-preact.js';
import { Name } from '../../text.js';
import { count, percent, plain, pluralize } from '../../formatting.js';
import { SeriesChart } from '../serieschart.js';
import { CLASSES } from './tokenclasses.js';
import { TokenStrip } from './tokenstrip.js';

const INITIAL_TURNS = 20;

/** The length of the common prefix of a prompt and the tokens of the previous turn. @param {number[]} prompt @param {number[]} previous */
function commonPrefix(prompt, previous) {
  const most = Math.min(prompt.length, previous.length);
  let same = 0;
  while (same < most && prompt[same] === previous[same]) same += 1;
  return same;
}

/** The model calls with recorded tokens. @param {any[]} events */
function turnsOf(events) {
  let previous = [];
  let segment = 0;
  return events.filter((event) => event.tokens?.generated.length).map((event, i) => {
    const { prompt, generated, trace } = event.tokens;
    const seen = commonPrefix(prompt, previous);
    const broken = i > 0 && seen < previous.length;
    segment = typeof trace?.segment === 'number' ? trace.segment : segment + Number(broken);
    const turn = { ...event.tokens, turn: event.turn, seen, broken, segment, lost: previous.length - seen };
    previous = [...prompt, ...generated];
    return turn;
  });
}

/** @param {{events: any[], chart: any}} props `chart` shows the log-probabilities */
export function TokenTurns({ events, chart }) {
  const turns = useMemo(() => turnsOf(events), [events]);
  if (!turns.length) return null;
  return html`<${Turns} turns=${turns} chart=${chart} />`;
}

function Turns({ turns, chart }) {
  const [limit, setLimit] = useState(INITIAL_TURNS);
  const all = useMemo(() => turns.flatMap((turn) => turn.log_probs), [turns]);
  const last = all.length - 1;
  const describe = (position) => {
    const i = Math.round(position * last);
    return `token ${count(i)}: log-probability ${plain(all[i])}, ${percent(Math.exp(Math.min(0, all[i])))}`;
  };
  const generated = turns.reduce((sum, turn) => sum + turn.generated.length, 0);
  const mean = all.reduce((sum, value) => sum + value, 0) / (all.length || 1);
  const covered = all.length < generated ? ` of the ${count(all.length)} with one` : '';
  const likelihood = all.length ? `mean log-probability${covered} ${plain(mean)}, perplexity ${perplexity(mean)}` : 'no log-probabilities';
  const masked = turns.reduce((sum, turn) => sum + turn.prompt.length - turn.seen, 0);
  return html`<section class="block tokens" aria-label="Tokens"><h2>Tokens</h2>
    <p class="small soft">${pluralize(generated, 'generated token')} in ${pluralize(turns.length, 'model call')},
      ${` ${pluralize(masked, 'masked prompt token')}`}; ${likelihood}.</p>
    <${Legend} />
    ${chart && html`<${SeriesChart} chart=${chart} describe=${describe} tick=${(position) => count(Math.round(position * last))} />`}
    ${turns.slice(0, limit).map((turn, i) => html`<${Turn} key=${i} turn=${turn} first=${i === 0} />`)}
    ${turns.length > limit && html`<button onClick=${() => setLimit(turns.length)}>
      Show the other ${turns.length - limit} model calls</button>`}
  </section>`;
}

/** e to the power of the negative mean. Engines write -9999 for a probability of 0, for which it exceeds all numbers. */
function perplexity(mean) {
  const value = Math.exp(-mean);
  return Number.isFinite(value) ? plain(value) : 'over 1e308';
}

function Legend() {
  return html`<ul class="legend" aria-label="Legend">
    ${CLASSES.map(({ name, label }) => html`<li><span class=${`token ${name}`}>id</span>${label}</li>`)}
    <li><span class="token masked">id</span>masked: a prompt token, not trained on</li>
  </ul>`;
}

function Turn({ turn, first }) {
  const mismatch = turn.trace?.break;
  const reason = mismatch && typeof mismatch === 'object' ? mismatch.reason : mismatch;
  const known = first ? '' : `, ${count(turn.seen)} of them from the previous turn`;
  const trainingNote = turn.trained ? '' : ', not trained on';
  const sizes = `${count(turn.prompt.length)} prompt tokens${known}; ${count(turn.generated.length)} generated${trainingNote}`;
  return html`<article class=${`turn ${turn.broken || mismatch ? 'broken' : ''}`} aria-label=${`Tokens of turn ${turn.turn}`}>
    <header class="row small"><strong>Turn ${turn.turn}</strong>
      <span class="badge soft">Segment ${turn.segment}</span>
      ${typeof turn.trace?.way === 'string' && html`<span class="badge soft"><${Name} value=${turn.trace.way} /></span>`}
      ${(turn.broken || mismatch) && html`<span class="badge bad">Prefix mismatch${reason && html`: <${Name} value=${reason} />`}</span>`}
      <span class="soft">${sizes}</span>
    </header>
    ${turn.broken && html`<p class="small bad">The prompt differs from the previous turn at token ${count(turn.seen)};
      ${` ${pluralize(turn.lost, 'token')}`} of that turn ${turn.lost === 1 ? 'is' : 'are'} missing.</p>`}
    <${TokenStrip} prompt=${turn.prompt} seen=${first ? 0 : turn.seen} generated=${turn.generated}
      logProbs=${turn.log_probs} texts=${turn.texts} trained=${turn.trained} />
  </article>`;
}
