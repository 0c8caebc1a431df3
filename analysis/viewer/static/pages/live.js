/** The current run: servers, stages of active rollouts, stuck rollouts, failures. */
import { html, useEffect, useLayoutEffect, useRef } from '../vendor/htm-preact.js';
import { useData } from '../data.js';
import { count, pluralize, seconds } from '../formatting.js';
import { useKeys } from '../keys.js';
import { Chart, SeriesChart } from '../parts/charts.js';
import { EpisodeView } from '../parts/conversation.js';
import { Breadcrumbs, HeadFacts, loading, Notice, Progress, Table } from '../parts/page.js';
import { attemptLink, decoded, go, link, runOfOutput } from '../route.js';
import { escapeInvisible, Name } from '../text.js';

const POLL_MS = 1000;
const IDLE_MS = 5000;

export function Live({ overview }) {
  const { value: live, error } = useData('live', (found) => (found?.run_id ? POLL_MS : IDLE_MS));
  const { value: history } = useData('live/charts', () => (live?.run_id ? POLL_MS : IDLE_MS));
  const charts = history?.charts ?? [];
  const pace = charts.filter((chart) => chart.name !== 'waiting');
  return html`
    <${Breadcrumbs} name="Live" title="Live" steps=${[['Overview', link([])]]} />
    ${loading(live, error, 'Looking for a run …')}
    ${live?.note && html`<p class="message"><${Name} value=${live.note} /></p>`}
    ${live && !live.run_id && !live.note && html`<${Notice} text="No run is active." />`}
    ${live?.run_id && html`
      <p class="soft small">Run <${Name} value=${live.run_id} />, head <${Name} value=${live.head} />,
        ${` ${pluralize(live.total, 'active rollout')}`}</p>
      ${live.stuck.length > 0 && html`<ul class="stuck" role="alert">${live.stuck.map((line) => html`<li>
        <strong class="bad">Stuck: </strong><${Name} value=${line} /></li>`)}</ul>`}
      ${live.collections.map((one) => html`<section aria-label="Collection">
        <h2 class="path"><${Name} value=${one.output} /></h2><${Progress} status=${one.status} />
      </section>`)}
      ${pace.length > 0 && html`<section class="block" aria-label="Pace"><h2>Pace</h2>
        <div class="charts">${pace.map((chart) => html`<${SeriesChart} key=${chart.name} chart=${chart} />`)}</div>
      </section>`}
      <${Servers} servers=${live.servers} now=${live.time} />
      <${ActiveEpisodes} waiting=${charts.find((chart) => chart.name === 'waiting')} episodes=${live.episodes} total=${live.total} />
      <${SilentAgents} servers=${live.servers} />
      <${RecentFailures} collections=${live.collections} overview=${overview} />`}`;
}

function SilentAgents({ servers }) {
  const silent = servers.filter((one) => one.server_type === 'agents' && one.origin);
  return silent.length > 0 && html`<p class="soft small block">Not listed: the episodes of
    ${silent.map((one, at) => html`${at ? ', ' : ' '}<${Name} value=${one.server_name} />`)}. Agents of other frameworks do not report them.</p>`;
}

const SHOWN = 50;

function ActiveEpisodes({ waiting, episodes, total }) {
  if (!total) return null;
  const shown = episodes.slice(0, SHOWN);
  return html`<section class="block" aria-label="Active rollouts"><h2>Active rollouts</h2>
    ${waiting && html`<${Chart} chart=${waiting} />`}
    <${Table} label="Oldest rollouts" caption=${`Oldest rollouts ${shown.length < total ? `${shown.length} of ${count(total)}` : ''}`} wide
      names=${['task', 'repeat', 'stage', 'server', 'turn', 'time in stage', 'age']} left=${['stage', 'server']} keys=${shown.map((one) => one.episode)} rows=${shown.map((one) => [
        html`<a href=${link(['live', one.agent, one.episode], { task: one.task, repeat: one.repeat })} aria-label=${`Follow task ${one.task ?? '–'}, repeat ${one.repeat ?? '–'}`}>${one.task ?? '–'}</a>`,
        one.repeat ?? '–', html`<td class=${`words ${one.stuck ? 'bad' : ''}`}>${one.stage}${one.stuck && ', stuck'}</td>`,
        html`<${Name} value=${one.server} />`, one.turn, seconds(one.stage_s), seconds(one.age_s),
      ])} />
  </section>`;
}

const Servers = ({ servers }) => html`<section class="block" aria-label="Servers"><h2>Servers</h2>
  <${Table} label="Servers" names=${['name', 'state', 'requests/s', 'requests', 'in flight', 'sessions', 'restarts', 'up']} left=${['name', 'state']} wide
    rows=${servers.map((one) => [
      html`<${Name} value=${one.process_name} />`,
      html`<td class=${`words ${one.ready ? 'good' : 'bad'}`}>${one.ready ? 'ready' : one.status}${one.phase && html`: <${Name} value=${one.phase} />`}</td>`,
      one.requests_per_s.toFixed(1), count(one.requests), count(one.in_flight), count(one.sessions),
      html`<td class=${one.restarts > 0 ? 'bad' : ''}>${count(one.restarts)}</td>`, seconds(one.uptime_seconds),
    ])} />
</section>`;

function RecentFailures({ collections, overview }) {
  const rows = collections.flatMap(({ output, failures }) => failures.map((row) => ({ row, run: runOfOutput(overview, output) })));
  const latest = rows.sort((a, b) => b.row.time - a.row.time).slice(0, SHOWN);
  const time = (row) => new Date(row.time * 1000).toLocaleTimeString('en-GB');
  return latest.length > 0 && html`<section class="block" aria-label="Failed attempts"><h2>Failed attempts</h2>
    <${Table} label="Failed attempts" names=${['when', 'task', 'repeat', 'kind', 'server', 'detail']} left=${['when', 'kind', 'server', 'detail']} wide
      keys=${latest.map(({ row, run }) => `${run?.run} ${row._ng_task_index} ${row._ng_rollout_index} ${row._ng_attempt_index}`)}
      rows=${latest.map(({ row, run }) => [
        run ? html`<a href=${attemptLink(run.run, { task: row._ng_task_index, repeat: row._ng_rollout_index, at: row._ng_attempt_index })}>${time(row)}</a>` : time(row),
        row._ng_task_index, row._ng_rollout_index, html`<${Name} value=${row.failure_kind} />`, html`<${Name} value=${row.server} />`,
        html`<td class="words" title=${escapeInvisible(row.detail)}><${Name} value=${row.detail} /></td>`,
      ])} />
  </section>`;
}

const TAIL_MS = 700;
const LOST_MS = 3000;

/** Polls an episode until it has ended. The conversation is only sent if it has grown. */
function useTail(agent, episode) {
  const latest = useRef({ response: null, tail: null });
  const before = latest.current.tail;
  const path = `live/episodes/${encodeURIComponent(agent)}/${encodeURIComponent(episode)}?have=${before?.revision ?? -1}`;
  const { value: found, error } = useData(path, (tail) => ({ playing: TAIL_MS, ended: 0 }[tail?.state] ?? LOST_MS));
  if (found && found !== latest.current.response) {
    // What is on the screen stays if nothing newer is known, also if the viewer was restarted meanwhile.
    const { revision, events, replay } = before && (found.events?.length ?? 0) < before.events.length ? before : { ...found, events: found.events ?? [] };
    const tail = { ...found, revision, events, replay, task: found.task ?? before?.task ?? null, repeat: found.repeat ?? before?.repeat ?? null };
    latest.current = { response: found, tail };
  }
  return { tail: latest.current.tail, error };
}

const NEAR_PX = 120;

/** Keeps the newest message visible if the end of the page was visible before. @param {any[] | undefined} events */
function useEndKept(events) {
  const wasAtEnd = useRef(false);
  useEffect(() => {
    const update = () => {
      wasAtEnd.current = innerHeight + scrollY >= document.documentElement.scrollHeight - NEAR_PX;
    };
    addEventListener('scroll', update, { passive: true });
    return () => removeEventListener('scroll', update);
  }, []);
  useLayoutEffect(() => {
    if (wasAtEnd.current) scrollTo(0, document.documentElement.scrollHeight);
  }, [events]);
}

const WAITING = { seed: 'starting the session', model: 'the model writes', tool: 'a tool runs', verify: 'the verdict is computed', close: 'closing the session' };

export function Tail({ route, overview }) {
  const [, agent, episode] = route.path.map(decoded);
  return html`<${Followed} key=${`${agent}/${episode}`} agent=${agent} episode=${episode} query=${route.query} overview=${overview} />`;
}

function Followed({ agent, episode, query, overview }) {
  const { tail: found, error } = useTail(agent, episode);
  // An episode that has just ended may be known only by the link that led here.
  const tail = found && { ...found, task: found.task ?? wholeNumber(query, 'task'), repeat: found.repeat ?? wholeNumber(query, 'repeat') };
  useEndKept(tail?.events);
  const toEnd = () => scrollTo(0, document.documentElement.scrollHeight);
  useKeys({ n: toEnd, u: () => go(link(['live'])) });
  const known = Number.isInteger(tail?.task);
  const title = known ? `Task ${tail.task}, repeat ${tail.repeat ?? '–'}` : 'Episode';
  return html`
    <${Breadcrumbs} name=${`${title}, live`} title=${html`${title} <span class="soft">live</span>`} steps=${[['Overview', link([])], ['Live', link(['live'])]]} />
    ${loading(tail, error, 'Looking for the episode …')}
    ${tail && html`
      <${State} tail=${tail} toEnd=${toEnd} />
      ${tail.state !== 'playing' && known && html`<${Sequel} tail=${tail} overview=${overview} />`}
      ${tail.events.length > 0 && html`<${EpisodeView} events=${tail.events} replay=${tail.replay} label="Conversation so far" />`}`}`;
}

function wholeNumber(query, name) {
  const text = query.get(name);
  return text !== null && /^\d+$/.test(text) ? Number(text) : null;
}

function State({ tail, toEnd }) {
  if (tail.state === 'unknown') return html`<p class="message"><${Name} value=${`This episode is not known: ${tail.note}.`} /></p>`;
  if (tail.state === 'lost') {
    return html`<div class="message wrong" role="alert"><p><strong>The agent is gone. </strong>This is the last state that it reported, at
      ${` ${new Date(tail.asked * 1000).toLocaleTimeString('en-GB')}. `}<${Name} value=${tail.note} /></p></div>`;
  }
  if (tail.state === 'ended') return html`<p class="message" role="status">The episode has ended. The last moments before its end may be missing here.</p>`;
  return html`<${HeadFacts} facts=${[
    ['Now', html`<span class="livedot" aria-hidden="true"></span>${WAITING[tail.stage] ?? tail.stage}`], ['Server', html`<${Name} value=${tail.server} />`],
    ['For', seconds(tail.stage_s)], ['Turn', tail.turn], ['Age', seconds(tail.age_s)], ['Agent', html`<${Name} value=${tail.agent} />`],
  ]} /><p><button title="The page then follows new messages" onClick=${toEnd}>Newest message</button></p>`;
}

const SEQUEL_POLL_MS = 1000;

function Sequel({ tail, overview }) {
  const { value: live } = useData('live', () => SEQUEL_POLL_MS);
  const outputs = (live?.collections ?? []).map((one) => one.output);
  const runs = outputs.map((output) => runOfOutput(overview, output)).filter(Boolean);
  const again = live?.episodes.find((one) => one.task === tail.task && one.repeat === tail.repeat && one.episode !== tail.episode);
  return html`
    ${again && html`<p><a class="button" href=${link(['live', again.agent, again.episode], { task: again.task, repeat: again.repeat })}>Follow the next attempt</a></p>`}
    ${runs.map((run) => html`<${Finished} key=${run.run} run=${run} alone=${runs.length === 1} tail=${tail} />`)}
    ${live && runs.length === 0 && outputs.length > 0 && html`<p class="soft small">
      Its rollouts are not open here. Show them with <code><${Name} value=${`ng_viewer ${outputs[0]}`} /></code></p>`}`;
}

/** Asks until the rollout is in the file, and for its failed attempts. */
function Finished({ run: { run, name }, alone, tail }) {
  const { task, repeat } = tail;
  // An episode does not tell which of several collections it belongs to.
  const where = alone ? '' : html` in <${Name} value=${name} />`;
  const rollouts = useData(`runs/${run}/sequel/${task}/${repeat}`, (found) => (found?.measured ? 0 : SEQUEL_POLL_MS));
  const found = rollouts.value;
  if (!found) return null;
  return html`<p class="row" role="status">
    ${found.measured && html`<a class="button" href=${link(['runs', run, 'tasks', task, repeat])}>The finished rollout${where}</a>`}
    ${found.attempts > 0 && html`<a class="button" href=${attemptLink(run, { task, repeat, at: found.attempts - 1 })}>The failed attempt${where}</a>`}
    ${!found.measured && !found.attempts && html`<span class="soft small">Waiting for the rollout to be recorded …</span>`}
  </p>`;
}
