/** One rollout: its conversation, board, rewards, tokens, failed attempts and other fields. */
import { html, useEffect, useMemo, useRef, useState } from '../vendor/htm-preact.js';
import { IS_EXPORT, useData } from '../data.js';
import { count, plain, seconds, signed } from '../formatting.js';
import { useKeys } from '../keys.js';
import { PAGE_LENGTH } from './list.js';
import { Counterparts } from './sidebyside.js';
import { Annotator, useAnnotator } from '../parts/annotator.js';
import { useEpisode } from '../parts/board.js';
import { Conversation, RenderedButton } from '../parts/conversation.js';
import { countedNames, outlineOf } from '../parts/episodeoutline.js';
import { FindBar } from '../parts/findbar.js';
import { keyOf, NONE, NUMBERED, ownLabel, useNotes, verdictText } from '../parts/notestore.js';
import { Breadcrumbs, HeadFacts, loading } from '../parts/page.js';
import { Facts, Raw } from '../parts/parsed.js';
import { parseToken, piecesOfConversation, placeOf } from '../parts/tokenpieces.js';
import { TokenTurns, WorstTokens } from '../parts/tokens.js';
import { Outcome, Verdict } from '../parts/verdict.js';
import { attemptLink, changed, go, link } from '../route.js';
import { runOf } from '../runs.js';
import { useSetting } from '../storage.js';
import { Name, Text } from '../text.js';

export function Rollout({ route, overview }) {
  const [, run, , task, repeat] = route.path;
  const { value: rollout, error, stale } = useData(`runs/${run}/rollouts/${task}/${repeat}`);
  const neighbours = useNeighbours(route, rollout);
  useKeys({
    '[': () => (neighbours.previous ? go(neighbours.previous) : false),
    ']': () => (neighbours.next ? go(neighbours.next) : false),
    u: () => go(neighbours.list),
  });
  const notes = useNotes(run);
  const annotator = useAnnotator(notes, () => (rollout && !stale ? { task: Number(task), repeat: Number(repeat) } : null));
  const file = html`<${Name} value=${runOf(overview, run).name} />`;
  return html`
    <${Breadcrumbs} name=${`Task ${task}, repeat ${repeat}`} title=${html`Task ${task} <span class="soft">repeat ${repeat}</span>`}
      steps=${[['Overview', link([])], [file, neighbours.list], [`Task ${task}`, link(['runs', run], { task })]]}>
      <nav class="row" aria-label="Neighbours">
        ${neighbours.place && html`<span class="small soft number">${neighbours.place}</span>`}
        ${[['Previous', '[', neighbours.previous], ['Next', ']', neighbours.next]].map(([label, key, href]) => (href
          ? html`<a class="button" href=${href} title=${`${label} (${key})`}>${label}</a>` : html`<button disabled>${label}</button>`))}
      </nav>
    <//>
    ${loading(rollout, error, 'Reading …')}
    ${rollout && html`<div class=${stale ? 'stale' : ''}>
      <${RolloutDetails} key=${`${rollout.run}/${rollout.line.task}/${rollout.line.repeat}`} rollout=${rollout}
        query=${route.query.get('q') ?? ''} match=${/^\d{1,6}$/.test(route.query.get('match') ?? '') ? Number(route.query.get('match')) : -1} token=${route.query.get('token')} annotator=${annotator} />
    </div>`}
    <${Annotator} annotator=${annotator} />`;
}

/** `query` is the text of the search in the list, which is marked in the conversation; `match` is the event to show first, and `token` the
 * token in the address, which is shown. */
function RolloutDetails({ rollout, query, match, token, annotator }) {
  const { events, line } = rollout;
  const conversation = useRef(null);
  const { aside, current, show, keys } = useEpisode(rollout, conversation);
  const [swapped, setSwapped] = useSetting('swapped', false);
  const [probabilities, setProbabilities] = useSetting('probabilities', false);
  const [find, setFind] = useState(query);
  const [wanted, setWanted] = useState(match);
  const hasTexts = useMemo(() => events.some((event) => event.tokens?.texts.length), [events]);
  const [marked, setMarked] = useState(null); // the token to which the user went: an event and a piece of it
  const reading = useMemo(() => ({ swapped, probabilities: (probabilities || marked !== null) && hasTexts, find, marked }),
    [swapped, probabilities, hasTexts, find, marked]);
  const goToEvent = (index) => {
    setWanted(index);
    // The event may appear only with the next rendering.
    requestAnimationFrame(() => requestAnimationFrame(() => {
      const article = conversation.current?.querySelector(`[data-index="${index}"]`);
      article?.focus({ preventScroll: true });
      article?.scrollIntoView({ block: 'start' });
    }));
  };
  const goToToken = (call, position) => {
    const place = placeOf(events, piecesOfConversation(events), call, position);
    if (!place) return;
    setMarked(place);
    goToEvent(place.event);
  };
  useEffect(() => {
    const wantedToken = parseToken(token);
    if (wantedToken) goToToken(wantedToken.call, wantedToken.position);
  }, [rollout, token]);
  const showProbabilities = (shown) => {
    setMarked(null);
    setProbabilities(shown);
  };
  const moveTurn = (by) => {
    const starts = outlineOf(events).map((entry) => entry.index);
    const at = Number(/** @type {HTMLElement | null} */ (document.activeElement?.closest('[data-index]'))?.dataset.index ?? -1);
    const here = starts.findLastIndex((index) => index <= at);
    const between = by < 0 && here >= 0 && at > starts[here];
    goToEvent(starts[Math.max(0, Math.min(starts.length - 1, between ? here : here + by))]);
  };
  const moveFocus = (by) => {
    const all = [...conversation.current.querySelectorAll('article')];
    const at = all.indexOf(document.activeElement);
    const next = all[Math.max(0, Math.min(all.length - 1, at + by))];
    next?.focus();
    next?.scrollIntoView({ block: 'nearest' });
  };
  useKeys({
    j: () => moveFocus(1), k: () => moveFocus(-1), J: () => moveTurn(1), K: () => moveTurn(-1),
    m: () => setSwapped(!swapped), p: () => (hasTexts ? showProbabilities(!reading.probabilities) : false),
    ...keys,
  });
  return html`
    <${HeadFacts} facts=${[
      ['Outcome', html`<${Outcome} line=${line} />`], ['Reward', plain(line.reward)], ['Tool calls', count(line.tool_calls)], ['Turns', count(line.turns)],
      ['Output tokens', count(line.output_tokens)], ['Time', seconds(line.seconds)], ['End', html`<${Name} value=${line.end} />`],
      ...(line.agent ? [['Agent', html`<${Name} value=${line.agent} />`]] : []),
    ]} />
    <${Verdict} verdict=${rollout.verdict} label="Verdict" />
    <${NotesPanel} annotator=${annotator} line=${line} />
    <${Counterparts} run=${rollout.run} line=${line} />
    <div class=${aside ? 'beside' : ''}>
      ${aside}
      <section class="conversation" aria-label="Conversation">
        <div class="reading row">
          <${RenderedButton} swapped=${swapped} setSwapped=${setSwapped} />
          ${hasTexts && html`<button aria-pressed=${reading.probabilities} title="Probabilities of tokens (p)"
            onClick=${() => showProbabilities(!reading.probabilities)}>Probabilities</button>`}
          <${FindBar} conversation=${conversation} find=${find} setFind=${setFind} first=${match} />
        </div>
        <div class="outlined">
          <${Outline} events=${events} go=${goToEvent} />
          <div class="messages" ref=${conversation}>
            <${Conversation} events=${events} current=${current} show=${show} reading=${reading} wanted=${wanted} />
          </div>
        </div>
      </section>
    </div>
    <${WorstTokens} events=${events} go=${goToToken} />
    <${TokenTurns} events=${events} chart=${rollout.charts.find((chart) => chart.name === 'log_probs')} />
    <${Attempts} run=${rollout.run} line=${line} attempts=${rollout.attempts} />
    <${Facts} facts=${rollout.facts} />
    <${Raw} path=${`runs/${rollout.run}/rollouts/${line.task}/${line.repeat}/raw`} name=${`rollout-${line.task}-${line.repeat}.json`} />`;
}

function Attempts({ run, line: { task, repeat }, attempts }) {
  return attempts.length > 0 && html`<section class="block" aria-label="Failed attempts"><h2>Failed attempts</h2>
    <ol class="attempts">${attempts.map((one, at) => html`<li>
      <p><strong class="bad"><${Name} value=${one.kind} /></strong> at <${Name} value=${one.server} /> after ${seconds(one.seconds)}
        <span class="soft small"> attempt ${one.attempt + 1}${one.when > 0 && `, ${new Date(one.when * 1000).toLocaleString('en-GB')}`}</span>
        ${' '}<a class="small" href=${attemptLink(run, { task, repeat, at })}>${one.has_conversation ? 'What was said until then' : 'Open'}</a></p>
      <${Text} value=${one.detail} lines=${8} characters=${800} kind="mono" />
    </li>`)}</ol>
  </section>`;
}

const MIN_TURNS = 3;
const MAX_ENTRIES = 1000;

function Outline({ events, go }) {
  const entries = useMemo(() => outlineOf(events), [events]);
  const isWide = useMemo(() => matchMedia('(min-width: 80rem)').matches, []);
  if (entries.length <= MIN_TURNS) return null;
  return html`<details class="outline" open=${isWide}><summary class="small soft">Outline (J K)</summary>
    <nav aria-label="Outline"><ol>${entries.slice(0, MAX_ENTRIES).map((entry) => html`<li key=${entry.index}>
      <button class="quiet" onClick=${() => go(entry.index)}>
        <span class="number turn">${entry.turn || 'Prompt'}</span>
        <span class="what"><${Name} value=${entry.calls.length ? countedNames(entry.calls) : entry.words} /></span>
        ${entry.reward !== null && html`<span class=${`number ${entry.reward < 0 ? 'soft' : 'good'}`}>${signed(entry.reward)}</span>`}
      </button></li>`)}</ol></nav>
  </details>`;
}

function NotesPanel({ annotator, line }) {
  const { store } = annotator;
  const notes = store.notes.get(keyOf(line)) ?? NONE;
  const isEmpty = notes === NONE;
  const own = notes.verdicts.find((one) => one.author === store.author);
  const canWrite = !store.whyReadOnly;
  if (isEmpty && IS_EXPORT) return null;
  return html`<section class="notespanel" aria-label="Notes and labels">
    ${canWrite && html`<div class="row">
      <button title="Add a label (l)" onClick=${annotator.start('label')}>Label</button>
      ${['correct', 'wrong'].map((verdict) => html`<button title=${verdict === 'correct' ? 'Correct (c)' : 'Wrong (x)'}
        aria-pressed=${own?.verdict === verdict ? 'true' : 'false'} onClick=${annotator.judge(verdict)}>${verdict === 'correct' ? 'Correct' : 'Wrong'}</button>`)}
      <button title="Verdict with a reason, or a reward (v)" onClick=${annotator.start('verdict')}>Reason</button>
      <button title="Write a note (w)" onClick=${annotator.start('note')}>Note</button>
      <span class="row used" role="group" aria-label="Labels used most">${(store.view?.labels ?? []).slice(0, NUMBERED).map(({ label }, i) => html`
        <button key=${label} class="quiet" aria-pressed=${ownLabel(notes, label, store.author) ? 'true' : 'false'} title=${`${i + 1}`}
          onClick=${() => annotator.toggle(line, label)}><kbd>${i + 1}</kbd> <${Name} value=${label} /></button>`)}</span>
      ${store.written.length > 0 && html`<button class="quiet" title="Undo (z)" onClick=${annotator.undo}>Undo</button>`}
      <label class="small soft author">as <input type="text" aria-label="Your name" maxlength="80" size="8" value=${store.author}
        onChange=${(event) => store.rename(event.target.value)} /></label>
    </div>`}
    ${!canWrite && !IS_EXPORT && html`<p class="small soft"><${Name} value=${`Notes cannot be written: ${store.whyReadOnly}.`} /></p>`}
    ${!isEmpty && html`<ul>
      ${notes.verdicts.map((one) => html`<li key=${one.id}><span class=${`mark ${one.verdict === 'wrong' ? 'bad' : one.verdict === 'correct' ? 'good' : ''}`}>${verdictText(one.verdict)}</span>
        <${By} one=${one} /> ${one.reason && html`<${Text} value=${one.reason} lines=${4} characters=${400} />`}
        <${Remove} annotator=${annotator} line=${line} one=${one} name=${`the verdict of ${one.author}`} /></li>`)}
      ${notes.labels.map((one) => html`<li key=${one.id}><span class="mark"><${Name} value=${one.label} /></span>
        <${By} one=${one} /><${Remove} annotator=${annotator} line=${line} one=${one} name=${`the label ${one.label} of ${one.author}`} /></li>`)}
      ${notes.texts.map((one) => html`<li key=${one.id} class="written"><${Text} value=${one.text} lines=${12} characters=${1500} />
        <${By} one=${one} /><${Remove} annotator=${annotator} line=${line} one=${one} name=${`the note of ${one.author}`} /></li>`)}
    </ul>`}
  </section>`;
}

function By({ one }) {
  return html`${' '}<span class="small soft" title=${new Date(one.time).toLocaleString('en-GB')}><${Name} value=${one.author} /></span>${' '}`;
}

function Remove({ annotator, line, one, name }) {
  if (annotator.store.whyReadOnly) return null;
  return html`<button class="quiet remove" aria-label=${`Remove ${name}`} title="Remove"
    onClick=${() => annotator.write(line, { kind: 'removal', removes: one.id })}>×</button>`;
}

/** The address contains the list's query; `at` is the position in the list. @param {import('../route.js').Route} route @param {any} rollout
 * @returns {{list: string, previous: string | null, next: string | null, place: string}} */
function useNeighbours(route, rollout) {
  const [, run, , task, repeat] = route.path;
  const at = Number.parseInt(route.query.get('at') ?? '', 10);
  const listed = Number.isFinite(at) && at >= 0;
  const start = Math.max(0, at - 1);
  const request = changed(route.query, { at: null, facet: null, match: null, columns: 'task', start, limit: 3 });
  const { value: page } = useData(listed ? `runs/${run}/rollouts?${request}` : null);
  const lines = page?.lines ?? [];
  const here = lines.findIndex((line) => String(line.task) === task && String(line.repeat) === repeat);
  const query = changed(route.query, { at: null, match: null });
  if (listed && page && here >= 0) {
    const to = (step) => {
      const line = lines[here + step];
      return line ? link(['runs', run, 'tasks', line.task, line.repeat], changed(query, { at: page.start + here + step })) : null;
    };
    const from = Math.floor(at / PAGE_LENGTH) * PAGE_LENGTH;
    const list = link(['runs', run], changed(query, { start: from || null }));
    return { list, previous: to(-1), next: to(1), place: `${count(page.start + here + 1)} of ${count(page.total)}` };
  }
  const same = rollout && String(rollout.line.task) === task && String(rollout.line.repeat) === repeat;
  const isLoading = listed && !page;
  const to = (key) => (same && key && !isLoading ? link(['runs', run, 'tasks', ...key]) : null);
  return { list: link(['runs', run], query), previous: to(rollout?.previous), next: to(rollout?.next), place: '' };
}
