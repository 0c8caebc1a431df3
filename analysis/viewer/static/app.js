/** The frame of every page: the navigation bar, the page for the current address, and the keys. */
import { html, render, useEffect, useRef, useState } from './vendor/htm-preact.js';
import { IS_EXPORT, useData } from './data.js';
import { KEYS, useKeys } from './keys.js';
import { Attempt, Attempts } from './pages/attempts.js';
import { Compare } from './pages/compare.js';
import { Findings } from './pages/findings.js';
import { List, stepKeys } from './pages/list.js';
import { Live, Tail } from './pages/live.js';
import { NotesPage } from './pages/notes.js';
import { Overview } from './pages/overview.js';
import { Rollout } from './pages/rollout.js';
import { Series } from './pages/series.js';
import { SideBySide } from './pages/sidebyside.js';
import { Mismatch, Training } from './pages/training.js';
import { Breadcrumbs, Notice } from './parts/page.js';
import { go, link, useNavigation, useRoute } from './route.js';
import { comparedRuns, hasSeries, isGrowing, mainRun, runExists, runOf, wantedRuns } from './runs.js';
import { applyTheme, nextTheme, theme } from './storage.js';

const BUSY_POLL_MS = 2000;
const IDLE_POLL_MS = 10000;
const LIVE_TRAINING_S = 900;

/** The interval until the next request: short while a run is still being written or read. */
function pollInterval(overview) {
  const { updated } = overview?.training ?? {};
  if (updated && Date.now() / 1000 - updated < LIVE_TRAINING_S) return BUSY_POLL_MS;
  const busy = !overview || overview.runs.some(isGrowing);
  return busy ? BUSY_POLL_MS : IDLE_POLL_MS;
}

const NUMBER = /^\d+$/;

/** The page for an address, or null. @param {string[]} path @param {any} overview */
function pageFor(path, overview) {
  const [section, first, second, third, fourth] = path;
  const run = (index) => NUMBER.test(index ?? '') && runExists(overview, Number(index));
  if (section === undefined) return overview.training ? Training : Overview;
  if (section === 'live' && path.length === 1) return Live;
  if (section === 'live' && path.length === 3 && !IS_EXPORT) return Tail;
  if (section === 'runs' && run(first)) {
    if (path.length === 2) return List;
    if (second === 'attempts' && path.length === 3) return Attempts;
    if (second === 'attempts' && path.length === 6 && path.slice(3).every((part) => NUMBER.test(part))) return Attempt;
    if (second === 'findings' && path.length === 3) return Findings;
    if (second === 'notes' && path.length === 3) return NotesPage;
    if (second === 'tasks' && NUMBER.test(third) && NUMBER.test(fourth) && path.length === 5) return Rollout;
  }
  if (section === 'side-by-side' && run(first) && run(fourth) && path.length === 7 && path.slice(1).every((part) => NUMBER.test(part))) return SideBySide;
  if (section === 'series' && !IS_EXPORT) return Series;
  if (section === 'mismatch' && overview.training && path.length === 1) return Mismatch;
  if (section === 'compare' && run(first) && run(second) && path.length === 3) return Compare;
  return null;
}

function App() {
  const route = useRoute();
  const [helpOpen, setHelpOpen] = useState(false);
  const [shownTheme, setTheme] = useState(theme());
  const changeTheme = () => setTheme(nextTheme());
  const isTraining = useRef(false);
  const wanted = isTraining.current ? wantedRuns(route.path).map((run) => `run=${run}`).join('&') : '';
  const { value: overview, error } = useData(wanted ? `overview?${wanted}` : 'overview', pollInterval);
  isTraining.current = Boolean(overview?.training);
  const toRun = (...page) => () => mainRun(overview) !== null && go(link(['runs', mainRun(overview), ...page]));
  useKeys({
    '?': () => setHelpOpen(true),
    t: changeTheme,
    'g o': () => go(link([])),
    'g r': toRun(), 'g f': toRun('findings'), 'g n': toRun('notes'), 'g a': toRun('attempts'),
    'g l': () => go(link(['live'])),
    ...(overview?.training ? stepKeys(overview.training) : {}),
  });
  return html`
    <a class="skip" href="#main" onClick=${skip}>Skip to the content</a>
    <${Bar} route=${route} overview=${overview} help=${() => setHelpOpen(true)} shown=${shownTheme} next=${changeTheme} />
    <${Main} route=${route} overview=${overview} error=${error} />
    <${Help} open=${helpOpen} close=${() => setHelpOpen(false)} />`;
}

/** The address is used for routing, so the skip link moves the focus itself. */
function skip(event) {
  event.preventDefault();
  document.getElementById('main').focus();
}

const SECTIONS = [['', 'Rollouts'], ['findings', 'Findings'], ['notes', 'Notes']];

function Bar({ route, overview, help, shown, next }) {
  const main = mainRun(overview);
  const compared = comparedRuns(overview);
  const current = (name) => (route.path[0] === name ? 'page' : undefined);
  const run = current('runs') ? route.path[1] : main;
  const open = SECTIONS.find(([section]) => section && section === route.path[2]) ?? SECTIONS[0];
  return html`<header class="bar">
    <nav aria-label="Pages">
      <a class="brand" href=${link([])} aria-current=${current(undefined)}>Rollyard</a>
      ${main !== null && SECTIONS.map((one) => html`
        <a href=${link(['runs', run, one[0]].filter((part) => part !== ''))} aria-current=${current('runs') && one === open ? 'page' : undefined}>${one[1]}</a>`)}
      ${compared && html`<a href=${link(['compare', ...compared])} aria-current=${current('compare')}>Compare</a>`}
      ${!IS_EXPORT && hasSeries(overview) && html`<a href=${link(['series'])} aria-current=${current('series')}>Series</a>`}
      ${!IS_EXPORT && html`<a href=${link(['live'])} aria-current=${current('live')}>Live</a>`}
    </nav>
    <div class="tools">
      <button class="quiet" onClick=${next} title="Light or dark (t)"><span class="wide-only">Theme:</span>${shown}</button>
      <button class="quiet wide-only" onClick=${help} title="Keyboard shortcuts (?)">Keys</button>
    </div>
  </header>`;
}

function Main({ route, overview, error }) {
  const main = useRef(null);
  const path = route.path.join('/');
  const first = useRef(path);
  useEffect(() => {
    if (first.current === path) return;
    first.current = path;
    scrollTo(0, 0);
    main.current?.focus({ preventScroll: true });
  }, [path]);
  const Page = overview && pageFor(route.path, overview);
  const isOpening = Page && wantedRuns(route.path).some((run) => runOf(overview, run) === undefined);
  return html`<main id="main" tabindex="-1" ref=${main}>
    ${error && html`<${Notice} error=${error} />`}
    ${((!overview && !error) || isOpening) && html`<${Notice} busy="Opening …" />`}
    ${overview && !isOpening && (Page
      ? html`<${Page} key=${Page.name} route=${route} overview=${overview} />`
      : html`<${Breadcrumbs} name="Page not found" title="Page not found" steps=${[['Overview', link([])]]} />
        <${Notice} text="There is no run or page at this URL." />`)}
  </main>`;
}

function Help({ open, close }) {
  const dialog = useRef(null);
  useEffect(() => {
    if (open && !dialog.current.open) dialog.current.showModal();
    if (!open && dialog.current.open) dialog.current.close();
  }, [open]);
  useNavigation(close);
  return html`<dialog ref=${dialog} class="help" onClose=${close} aria-labelledby="help-title">
    <h2 id="help-title" tabindex="-1" autofocus>Keys</h2>
    <div class="groups">${KEYS.map(([page, keys]) => html`<section>
      <h3>${page}</h3>
      <dl>${keys.map(([key, action]) => html`<div>
        <dt>${key.split('  ').map((one) => html`<kbd>${one}</kbd> `)}</dt><dd>${action}</dd>
      </div>`)}</dl>
    </section>`)}</div>
    <form method="dialog"><button>Close</button></form>
  </dialog>`;
}

applyTheme();
render(html`<${App} />`, document.getElementById('app'));
