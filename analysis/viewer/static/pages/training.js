/** A training run: curves of all metrics, and the steps with their rollouts. */
import { html, useState } from '../vendor/htm-preact.js';
import { useData } from '../data.js';
import { count, percent, plain, pluralize, seconds, signed } from '../formatting.js';
import { useKeys } from '../keys.js';
import { Chart, SeriesChart } from '../parts/charts.js';
import { Breadcrumbs, loading, Notice, Paging, Progress, Table } from '../parts/page.js';
import { InContext } from '../parts/tokens.js';
import { go, link } from '../route.js';
import { rolloutsOf } from '../runs.js';
import { Name } from '../text.js';

const RETRY_MS = 1000;
const HINT = 'Point at a curve for its values, click to open the rollouts of a step. Bold lines are moving averages.';

export function Training({ overview }) {
  const { training } = overview;
  // Charts are drawn at a limited rate, so that those of the latest revision may have to be asked for again.
  const interval = (found) => (found && found.revision < training.revision ? RETRY_MS : 0);
  const { value, error } = useData(training.steps ? `training/charts?revision=${training.revision}` : null, interval);
  const collecting = training.collecting?.state === 'running' ? training.collecting : null;
  const version = `${training.revision}.${training.rollouts.length}.${training.evaluations.length}`;
  return html`
    <${Breadcrumbs} steps=${[]} name=${training.name} title=${html`Training run <${Name} value=${training.name} />`} />
    <p class="soft small">${training.state && html`<span class="badge"><${Name} value=${training.state} /></span> `}<${Name} value=${training.path} />${`, ${pluralize(training.steps, 'step')} with metrics${age(training)}`}</p>
    ${collecting && html`<section aria-label="Collection"><h2 class="path">Rollouts of step ${training.rollouts.at(-1)}</h2>
      <${Progress} status=${collecting} /></section>`}
    ${error && html`<${Notice} error=${error} />`}
    ${!training.steps && html`<${Notice} text="No step has metrics yet." />`}
    ${training.steps > 0 && !value && !error && html`<${Notice} busy="Drawing …" />`}
    ${value && html`<p class="soft small">${HINT}</p>`}
    ${training.token_pairs && html`<p><a class="button" href=${link(['mismatch'])}>Engine and trainer</a></p>`}
    ${value?.groups.map((group, at) => html`<${Group} key=${group.title} group=${group} open=${at < 4} charts=${value} rollouts=${training.rollouts} />`)}
    ${value?.zero.length > 0 && html`<p class="soft small">0 in every step: ${value.zero.map((name, at) => html`${at > 0 && ', '}<${Name} value=${name} />`)}.</p>`}
    <section class="block" aria-label="Steps"><h2>Steps</h2><${StepTable} version=${version} /></section>
    ${Object.keys(training.facts).length > 0 && html`<details class="folded block"><summary>How the run was started</summary>
      <dl class="facts">${Object.entries(training.facts).map(([name, value]) => html`
        <dt><${Name} value=${name} /></dt><dd><${Name} value=${value} /></dd>`)}</dl></details>`}
    <footer class="soft small block">Rollyard <${Name} value=${overview.version} /></footer>`;
}

function age(training) {
  if (training.updated === null) return '';
  const past = Math.max(0, Math.round(Date.now() / 1000 - training.updated));
  return `, the last one ${past < 120 ? `${past} s` : seconds(past)} ago`;
}

function Group({ group, open, charts, rollouts }) {
  const openStep = (place) => {
    const step = charts.first + place * (charts.last - charts.first);
    go(link(['runs', rolloutsOf(rollouts.toSorted((a, b) => Math.abs(a - step) - Math.abs(b - step))[0])]));
  };
  return html`<section class="block" aria-label=${group.title}><details class="group" open=${open}>
    <summary><h2>${group.title}</h2></summary>
    <div class="charts curves">${group.charts.map((chart) => html`
      <${SeriesChart} key=${chart.name} chart=${chart} choose=${rollouts.length ? openStep : undefined} />`)}</div></details></section>`;
}

const PAGE_LENGTH = 50;

/** `version` changes when there is something new. @param {{version: string}} props */
function StepTable({ version }) {
  const [start, setStart] = useState(0);
  const { value: page, error } = useData(`training/steps?start=${start}&limit=${PAGE_LENGTH}&version=${version}`);
  return html`${loading(page, error, 'Reading …')}${page && html`
    <${Table} label="Steps, the last one first" names=${['step', 'rollouts', ...page.columns]} left=${['rollouts']} rows=${page.lines.map(cellsOf)} />
    <${Paging} label="Pages of the table" start=${start} length=${PAGE_LENGTH} shown=${page.lines.length} total=${page.total} turn=${setStart}
      names=${['Later steps', 'Earlier steps']} />`}`;
}

function cellsOf({ step, rollouts, evaluation, cells }) {
  const to = (run, text, label) => html`<a href=${link(['runs', run])} aria-label=${`${label} of step ${step}`}>${text}</a>`;
  return [
    rollouts === null ? step : to(rollouts, step, 'Rollouts'),
    html`${rollouts !== null && to(rollouts, 'training', 'Training rollouts')}${rollouts !== null && evaluation !== null && ', '}
      ${evaluation !== null && to(evaluation, 'evaluation', 'Evaluation')}`,
    ...cells.map((cell) => cell || '–'),
  ];
}

const READING_MS = 1000;

export function Mismatch({ route, overview }) {
  const step = route.query.get('step');
  const { value, error, stale } = useData(`training/mismatch${step ? `?step=${encodeURIComponent(step)}` : ''}`, (found) => (found?.pending ? READING_MS : 0));
  const steps = value?.steps ?? [];
  const at = steps.indexOf(value?.step);
  const show = (index) => (steps[index] === undefined ? false : go(link(route.path, { step: steps[index] })));
  useKeys({ '[': () => show(at - 1), ']': () => show(at + 1) });
  return html`
    <${Breadcrumbs} name="Engine and trainer" title="Engine and trainer" steps=${[['Training run', link([])]]}>
      ${steps.length > 1 && html`<div class="row"><button disabled=${at <= 0} title="Previous step ([)" onClick=${() => show(at - 1)}>Previous</button>
        <label class="small soft">Step <select onChange=${(event) => go(link(route.path, { step: event.target.value }))}>
          ${steps.map((one) => html`<option value=${one} selected=${one === value.step}>${count(one)}</option>`)}</select></label>
        <button disabled=${at + 1 >= steps.length} title="Next step (])" onClick=${() => show(at + 1)}>Next</button></div>`}
    <//>
    ${loading(value, error, 'Reading …')}
    ${value && value.step === null && html`<p class="message">No step of ${overview.training?.name ?? 'this run'} has recorded pairs; ng_train records them in token_pairs/.</p>`}
    ${value?.problem && html`<${Notice} error=${new Error(value.problem)} />`}
    ${value && value.step !== null && !value.problem && html`<div class=${stale ? 'stale' : ''}>
      <p class="soft small">Step ${count(value.step)}: log-probabilities of ${pluralize(value.tokens, 'token')} with a loss, as the engine recorded them and as the
        trainer computed them before the update. Differences are those of rounding, of other kernels, and of rollouts that older weights sampled.
        ${` ${percent(value.tokens ? value.clipped / value.tokens : 0, 2)}`} have no gradient, because their ratio is clipped.
        ${value.not_finite > 0 && ` ${pluralize(value.not_finite, 'recorded token')} without a finite log-probability are left out.`}</p>
      <section class="block" aria-label="Sampled and all tokens"><h2>Sampled and all tokens</h2>
        <div class="charts">${value.charts.map((chart) => html`<${Chart} key=${chart.name} chart=${chart} />`)}</div></section>
      <${Largest} value=${value} />
    </div>`}`;
}

const LARGEST = ['token in context', 'engine', 'trainer', 'difference', 'ratio', 'entropy', 'clipped', 'rollout'];

function Largest({ value }) {
  return value.largest.length > 0 && html`<section class="block" aria-label="Largest differences"><h2>Largest differences</h2>
    <${Table} label="Table of the largest differences" names=${LARGEST} left=${['rollout']} rows=${value.largest.map((one) => {
      const name = `task ${one.task}, repeat ${one.repeat}`;
      const difference = one.trainer - one.engine;
      return [
        html`<${InContext} one=${one} logProb=${one.engine} kind="mono context" />`, plain(one.engine), plain(one.trainer), signed(difference),
        plain(Math.exp(difference)), plain(one.entropy), one.clipped ? 'yes' : 'no', one.call === null ? html`<span class="soft">${name}</span>`
          : html`<a href=${link(['runs', one.run, 'tasks', one.task, one.repeat], { token: `${one.call}.${one.position}` })}>${name}</a>`,
      ];
    })} /></section>`;
}
