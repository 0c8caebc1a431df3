/** One rollout: its conversation, board, rewards, tokens, failed attempts and other fields. */
import { html, useCallback, useEffect, useMemo, useRef, useState } from '../vendor/htm-preact.js';
import { useData } from '../data.js';
import { useKeys } from '../keys.js';
import { useNeighbours } from '../neighbours.js';
import { usePlayback } from '../playback.js';
import { Attempts } from '../parts/rollout/attempts.js';
import { BoardPlayer } from '../parts/rollout/boardplayer.js';
import { Conversation } from '../parts/rollout/conversation.js';
import { Facts } from '../parts/rollout/facts.js';
import { FindBar } from '../parts/rollout/findbar.js';
import { outlineOf } from '../parts/rollout/episodeoutline.js';
import { Notice, Breadcrumbs } from '../parts/notice.js';
import { Outcome } from '../parts/rollout/outcome.js';
import { Outline } from '../parts/rollout/outline.js';
import { Raw } from '../parts/rollout/raw.js';
import { Rewards, stepsOf } from '../parts/rollout/rewards.js';
import { NeighbourLink } from '../parts/rollout/neighbourlink.js';
import { Counterparts } from '../parts/sidebyside/counterparts.js';
import { TokenTurns } from '../parts/rollout/tokenturns.js';
import { parseToken, placeOf } from '../parts/tokens/worst.js';
import { WorstTokens } from '../parts/tokens/worsttokens.js';
import { piecesOfConversation } from '../parts/rollout/tokenpieces.js';
import { Verdict } from '../parts/verdict.js';
import { Annotator, useAnnotator } from '../parts/notes/annotator.js';
import { NotesPanel } from '../parts/notes/notespanel.js';
import { useNotes } from '../parts/notes/notestore.js';
import { nextUnlabelled } from '../parts/notes/nextunlabelled.js';
import { useSetting } from '../settings.js';
import { changed, go, link } from '../route.js';
import { runOf } from '../runs.js';
import { Name } from '../text.js';
import { count, plain, seconds } from '../formatting.js';

/** @param {{route: import('../route.js').Route, overview: any}} props */
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
  const here = { task: Number(task), repeat: Number(repeat), at: Number.parseInt(route.query.get('at') ?? '', 10) };
  const annotator = useAnnotator(notes, () => (rollout && !stale ? here : null), () => nextUnlabelled(notes, changed(route.query, { at: null }), here,
    annotator.setMessage, (found) => go(link(['runs', run, 'tasks', found.task, found.repeat], changed(route.query, { at: found.at })))));
  const file = html`<${Name} value=${runOf(overview, run).name} />`;
  return html`
    <${Breadcrumbs} name=${`Task ${task}, repeat ${repeat}`} title=${html`Task ${task} <span class="soft">repeat ${repeat}</span>`}
      steps=${[['Overview', link([])], [file, neighbours.list], [`Task ${task}`, link(['runs', run], { task })]]}>
      <${NeighbourLinks} neighbours=${neighbours} />
    <//>
    ${error && html`<${Notice} error=${error} />`}
    ${!rollout && !error && html`<${Notice} busy="Reading …" />`}
    ${rollout && html`<div class=${stale ? 'stale' : ''}>
      <${RolloutDetails} key=${`${rollout.run}/${rollout.line.task}/${rollout.line.repeat}`} rollout=${rollout}
        query=${route.query.get('q') ?? ''} match=${eventNumber(route.query.get('match'))} token=${route.query.get('token')} annotator=${annotator} />
    </div>`}
    <${Annotator} annotator=${annotator} />`;
}

/** An event's index in the address; -1 if there is none. */
function eventNumber(text) {
  return /^\d{1,6}$/.test(text ?? '') ? Number(text) : -1;
}

/** Links to the neighbours, in the order of the list that the user came from. */
function NeighbourLinks({ neighbours }) {
  return html`<nav class="row" aria-label="Neighbours">
    ${neighbours.place && html`<span class="small soft number">${neighbours.place}</span>`}
    <${NeighbourLink} href=${neighbours.previous} label="Previous" title="Previous ([)" /><${NeighbourLink} href=${neighbours.next} label="Next" title="Next (])" />
  </nav>`;
}

/**
 * `query` is the text of the search in the list, which is marked in the conversation; `match` is the event to show first, and
 * `token` the token in the address, which is shown.
 */
function RolloutDetails({ rollout, query, match, token, annotator }) {
  const { replay, events, line } = rollout;
  const steps = useMemo(() => stepsOf(rollout), [rollout]);
  const player = usePlayback(steps.length);
  const conversation = useRef(null);
  const current = steps[player.at]?.event ?? null;
  const show = useCallback((call) => {
    const found = steps.findLastIndex((step) => step.event === call);
    if (found >= 0) player.go(found);
  }, [rollout]);
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
    const at = Number(document.activeElement?.closest?.('[data-index]')?.dataset.index ?? -1);
    const here = starts.findLastIndex((index) => index <= at);
    const between = by < 0 && here >= 0 && at > starts[here];
    goToEvent(starts[Math.max(0, Math.min(starts.length - 1, between ? here : here + by))]);
  };
  const showStep = (step) => {
    player.go(step);
    conversation.current.querySelector(`[data-call="${Number(steps[step].event ?? NaN)}"]`)?.scrollIntoView({ block: 'nearest' });
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
    ...(steps.length > 0 ? player.keys : {}),
  });
  const hasAside = replay || steps.length > 0;
  return html`
    <dl class="headfacts">
      <div><dt>Outcome</dt><dd><${Outcome} line=${line} /></dd></div>
      <div><dt>Reward</dt><dd>${plain(line.reward)}</dd></div>
      <div><dt>Tool calls</dt><dd>${count(line.tool_calls)}</dd></div>
      <div><dt>Turns</dt><dd>${count(line.turns)}</dd></div>
      <div><dt>Output tokens</dt><dd>${count(line.output_tokens)}</dd></div>
      <div><dt>Time</dt><dd>${seconds(line.seconds)}</dd></div>
      <div><dt>End</dt><dd><${Name} value=${line.end} /></dd></div>
      ${line.agent && html`<div><dt>Agent</dt><dd><${Name} value=${line.agent} /></dd></div>`}
    </dl>
    <${Verdict} verdict=${rollout.verdict} label="Verdict" />
    <${NotesPanel} annotator=${annotator} line=${line} />
    <${Counterparts} run=${rollout.run} line=${line} />
    <div class=${hasAside ? 'beside' : ''}>
      ${hasAside && html`<aside class="stage" aria-label="Board and rewards">
        ${replay && html`<${BoardPlayer} replay=${replay} player=${player} />`}
        ${steps.length > 1 && html`<${Rewards} steps=${steps} at=${player.at} pick=${showStep} />`}
      </aside>`}
      <section class="conversation" aria-label="Conversation">
        <div class="reading row">
          <button aria-pressed=${swapped} title="What is rendered as Markdown; the rest is plain text (m)" onClick=${() => setSwapped(!swapped)}>Rendered: ${swapped ? 'prompts' : 'answers'}</button>
          ${hasTexts && html`<button aria-pressed=${reading.probabilities} title="Probabilities of tokens (p)"
            onClick=${() => showProbabilities(!reading.probabilities)}>Probabilities</button>`}
          <${FindBar} conversation=${conversation} find=${find} setFind=${setFind} first=${match} />
        </div>
        <div class="outlined">
          <${Outline} events=${events} conversation=${conversation} go=${goToEvent} />
          <div class="messages" ref=${conversation}>
            <${Conversation} events=${events} current=${current} show=${steps.length > 0 ? show : null} reading=${reading} wanted=${wanted} />
          </div>
        </div>
      </section>
    </div>
    <${WorstTokens} events=${events} go=${goToToken} />
    <${TokenTurns} events=${events} chart=${rollout.charts.find((chart) => chart.name === 'log_probs')} />
    <${Attempts} run=${rollout.run} task=${line.task} repeat=${line.repeat} attempts=${rollout.attempts} />
    <${Facts} facts=${rollout.facts} />
    <${Raw} path=${`runs/${rollout.run}/rollouts/${line.task}/${line.repeat}/raw`} name=${`rollout-${line.task}-${line.repeat}.json`} />`;
}
