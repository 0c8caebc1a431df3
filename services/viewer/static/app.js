/** The frame of every page: the navigation bar, the page for the current address, and the keys. */
import { html, useEffect, useRef, useState } from './vendor/htm-preact.js';
import { ALONE, useData } from './data.js';
import { Help } from './parts/help.js';
import { Notice, Breadcrumbs } from './parts/notice.js';
import { useKeys } from './keys.js';
import { nextTheme, theme } from './theme.js';
import { go, link, useRoute } from './route.js';
import { Compare } from './pages/compare.js';
import { List } from './pages/list.js';
import { Live } from './pages/live.js';
import { Overview } from './pages/overview.js';
import { Pair } from './pages/pair.js';
import { Rollout } from './pages/rollout.js';
import { Task } from './pages/task.js';

const SOON_MS = 2000;
const LATER_MS = 10000;

/** The interval until the next request: short while a run is still being written or read. */
function again(overview) {
  const busy = !overview || overview.runs.some((run) => run.status?.state === 'running' || run.indexed < run.size - run.torn);
  return busy ? SOON_MS : LATER_MS;
}

const NUMBER = /^\d+$/;

/** The page for an address, or null. @param {string[]} path @param {any[]} runs */
function pageFor(path, runs) {
  const [what, first, second, third, fourth] = path;
  const run = (place) => NUMBER.test(place ?? '') && Number(place) < runs.length;
  if (what === undefined) return Overview;
  if (what === 'live' && path.length === 1) return Live;
  if (what === 'runs' && run(first)) {
    if (path.length === 2) return List;
    if (second === 'tasks' && NUMBER.test(third) && path.length === 4) return Task;
    if (second === 'tasks' && NUMBER.test(third) && NUMBER.test(fourth) && path.length === 5) return Rollout;
  }
  if (what === 'compare' && run(first) && run(second)) {
    if (path.length === 3) return Compare;
    if (third === 'tasks' && path.slice(4).every((task) => NUMBER.test(task)) && [5, 6].includes(path.length)) return Pair;
  }
  return null;
}

export function App() {
  const route = useRoute();
  const [helping, setHelping] = useState(false);
  const { value: overview, error } = useData('overview', again);
  useKeys({
    '?': () => setHelping(true),
    t: nextTheme,
    'g o': () => go(link([])),
    'g r': () => go(link(['runs', 0])),
    'g l': () => go(link(['live'])),
  });
  return html`
    <a class="skip" href="#main" onClick=${skip}>Skip to the content</a>
    <${Bar} route=${route} runs=${overview?.runs ?? []} help=${() => setHelping(true)} />
    <${Main} route=${route} overview=${overview} error=${error} />
    <${Help} open=${helping} close=${() => setHelping(false)} />`;
}

/** The address is used for routing, so the skip link moves the focus itself. */
function skip(event) {
  event.preventDefault();
  document.getElementById('main').focus();
}

function Bar({ route, runs, help }) {
  const [look, setLook] = useState(theme());
  useEffect(() => {
    const moved = () => setLook(theme());
    addEventListener('themechange', moved);
    return () => removeEventListener('themechange', moved);
  }, []);
  const here = (name) => (route.path[0] === name ? 'page' : undefined);
  return html`<header class="bar">
    <nav aria-label="Pages">
      <a class="brand" href=${link([])} aria-current=${here(undefined)}>Rollyard</a>
      ${runs.length > 0 && html`<a href=${link(['runs', here('runs') ? route.path[1] : 0])} aria-current=${here('runs')}>Rollouts</a>`}
      ${runs.length > 1 && html`<a href=${link(['compare', 0, 1])} aria-current=${here('compare')}>Compare</a>`}
      ${!ALONE && html`<a href=${link(['live'])} aria-current=${here('live')}>Live</a>`}
    </nav>
    <div class="tools">
      <button class="quiet" onClick=${nextTheme} title="Light or dark (t)"><span class="wide-only">Theme:</span>${look}</button>
      <button class="quiet wide-only" onClick=${help} title="Keyboard shortcuts (?)">Keys</button>
    </div>
  </header>`;
}

function NotFound() {
  return html`<${Breadcrumbs} name="Page not found" title="Page not found" steps=${[['Overview', link([])]]} />
    <${Notice} says="There is no run or page at this address." />`;
}

function Main({ route, overview, error }) {
  const main = useRef(null);
  const place = route.path.join('/');
  const first = useRef(place);
  useEffect(() => {
    if (first.current === place) return;
    first.current = place;
    scrollTo(0, 0);
    main.current?.focus({ preventScroll: true });
  }, [place]);
  const Page = overview && pageFor(route.path, overview.runs);
  return html`<main id="main" tabindex="-1" ref=${main}>
    ${error && html`<${Notice} error=${error} />`}
    ${!overview && !error && html`<${Notice} busy="Opening …" />`}
    ${overview && (Page
      ? html`<${Page} key=${Page.name} route=${route} overview=${overview} />`
      : html`<${NotFound} />`)}
  </main>`;
}
