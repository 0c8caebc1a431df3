/** One failed attempt at a rollout: what was said, its boards, and where it failed. */
import { html } from '../vendor/htm-preact.js';
import { useData } from '../data.js';
import { seconds } from '../formatting.js';
import { useKeys } from '../keys.js';
import { AttemptBody } from '../parts/attempts.js';
import { Breadcrumbs, loading } from '../parts/page.js';
import { attemptLink, attemptsLink, go, link } from '../route.js';
import { runOf } from '../runs.js';
import { Name } from '../text.js';

export function Attempt({ route, overview }) {
  const [, run, , task, repeat, at] = route.path;
  const { value, error, stale } = useData(`runs/${run}/attempts/${task}/${repeat}/${at}`);
  const number = Number(at);
  const other = (to) => (value && to >= 0 && to < value.others ? attemptLink(Number(run), { task: Number(task), repeat: Number(repeat), at: to }) : null);
  const goTo = (to) => (other(to) ? go(other(to)) : false);
  useKeys({ '[': () => goTo(number - 1), ']': () => goTo(number + 1), u: () => go(attemptsLink(Number(run))) });
  return html`
    <${Breadcrumbs} name=${`Failed attempt ${number + 1} at task ${task}, repeat ${repeat}`}
      title=${html`Failed attempt <span class="soft">task ${task}, repeat ${repeat}</span>`}
      steps=${[['Overview', link([])], [html`<${Name} value=${runOf(overview, run).name} />`, link(['runs', run])], ['Failed attempts', attemptsLink(Number(run))]]}>
      <nav class="row" aria-label="Attempts at this rollout">
        ${other(number - 1) && html`<a class="button" href=${other(number - 1)}>Earlier attempt</a>`}
        ${other(number + 1) && html`<a class="button" href=${other(number + 1)}>Later attempt</a>`}
        ${value?.measured && html`<a class="button" href=${link(['runs', run, 'tasks', task, repeat])}>The rollout</a>`}
      </nav>
    <//>
    ${loading(value, error, 'Reading …')}
    ${value && html`<div class=${stale ? 'stale' : ''}>
      <dl class="headfacts">
        <div><dt>Failure</dt><dd class="bad"><${Name} value=${value.line.kind} /></dd></div>
        <div><dt>Server</dt><dd><${Name} value=${value.line.server || '–'} /></dd></div>
        <div><dt>After</dt><dd>${seconds(value.line.seconds)}</dd></div>
        <div><dt>Attempt</dt><dd>${value.line.attempt + 1}</dd></div>
        <div><dt>The rollout</dt><dd>${value.measured ? 'was measured by a later attempt' : 'has no reward'}</dd></div>
      </dl>
      ${value.events.length === 0 && html`<p class="mono message wrong"><${Name} value=${value.line.detail} /></p>`}
      <${AttemptBody} key=${`${task}/${repeat}/${at}`} attempt=${value} alone />
    </div>`}`;
}
