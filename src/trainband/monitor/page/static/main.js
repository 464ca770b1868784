// The page: the parts shared by all views, and the choice of a view.

import { connection } from './connection.js';
import { h, setAttribute, setText } from './dom.js';
import { count, duration, clock, rate } from './format.js';
import { Store } from './store.js';
import { VIEWS, load } from './views.js';

const STATES = { waiting: 'waiting', running: 'running', ended: 'ended', unreachable: 'no answer' };

const $ = (id) => document.getElementById(id);
const store = new Store();
let shown = null;
let due = false;

const tabs = VIEWS.map((view, place) => {
  const link = h('a', { href: `#${view.id}`, title: `Key ${place + 1}` }, view.title, h('span', { class: 'count' }));
  $('tabs').append(h('li', {}, link));
  return link;
});

function chosen() {
  return VIEWS.find((one) => one.id === location.hash.slice(1)) ?? VIEWS[0];
}

async function show() {
  if (location.hash === '#main') return $('main').focus();
  const view = chosen();
  try {
    await load(view);
  } catch {
    return $('main').replaceChildren(h('p', { class: 'empty' }, `The view ${view.title} could not be loaded; reload the page once its server answers.`));
  }
  if (view !== chosen() || shown?.view === view) return undefined; // another was chosen meanwhile
  shown?.end?.();
  const root = h('div', { class: `view view-${view.id}` }, h('h2', { class: 'visually-hidden' }, view.title));
  $('main').replaceChildren(root);
  shown = { view, ...view.open(root, store) };
  VIEWS.forEach((one, place) => {
    if (one === view) setAttribute(tabs[place], 'aria-current', 'page');
    else tabs[place].removeAttribute('aria-current');
  });
  tabs[VIEWS.indexOf(view)].scrollIntoView({ block: 'nearest', inline: 'nearest' });
  window.scrollTo(0, 0);
  return draw();
}

function draw() {
  due = false;
  const { job } = store;
  if (!job) return;
  drawHead(job);
  if (!shown) return;
  shown.update();
  if (document.body.dataset.ready) return;
  document.body.dataset.ready = 'yes';
  // All of them, because the server may end before they are opened; a failed one is retried when opened.
  for (const view of VIEWS) load(view).catch(() => {});
}

// Whether no worker has pushed yet: they are compiling their first step. A history alone has no tasks.
function isStarting(job) {
  return job.state === 'running' && job.ps.length > 0 && store.workers.every((worker) => !worker.pushes);
}

function drawHead(job) {
  setText($('source'), job.source);
  setText($('state'), isStarting(job) ? 'starting' : (STATES[job.state] ?? job.state));
  $('state').dataset.state = job.state;
  const of = job.last_step ? ` of ${count(job.last_step)}` : '';
  const left = job.left_s !== null && job.state === 'running' ? ` · ${duration(job.left_s)} left` : '';
  const pace = isStarting(job) ? (store.workers.length ? 'compiling the first step' : 'no worker yet') : `${rate(job.rate)} steps/s`;
  const speed = job.state === 'running' ? ` · ${pace}` : '';
  setText($('progress-text'), job.state === 'waiting' ? '' : `step ${count(job.global_step)}${of}${speed}${left}`);
  document.title = job.state === 'running' ? `${count(job.global_step)} · trainband` : `${STATES[job.state]} · trainband`;
  const counts = { overview: job.alerts.length, workers: store.workers.length, servers: job.ps.length };
  VIEWS.forEach((view, place) => {
    const badge = tabs[place].querySelector('.count');
    const value = counts[view.id];
    setText(badge, value ? count(value) : '');
    badge.classList.toggle('alarm', view.id === 'overview' && Boolean(value));
    if (view.id === 'overview') setAttribute(badge, 'aria-label', value ? `${value} alerts` : '');
  });
}

store.addEventListener('news', () => {
  if (due) return;
  due = true;
  // Not requestAnimationFrame alone: a background page must keep its title and texts up to date.
  if (document.hidden) setTimeout(draw, 0);
  else requestAnimationFrame(draw);
});

store.addEventListener('happened', (event) => {
  const grave = event.detail.filter((one) => one.severity === 'error' || one.kind === 'ended');
  if (grave.length) setText($('announcer'), grave.map((one) => one.text).join(' '));
});

connection.follow(store, (heard) => {
  const banner = $('connection');
  banner.hidden = heard === null;
  if (heard === null) return;
  const ended = store.job?.state === 'ended';
  const since = clock(heard / 1000);
  setText(
    banner,
    ended
      ? `The job and the server of this page have ended. The page shows the state at ${since}.`
      : `The server of this page has not answered since ${since}. The page shows the state at that time and resumes when it answers.`,
  );
});

window.addEventListener('hashchange', show);

window.addEventListener('keydown', (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target.closest?.('input, select, textarea');
  if (event.key === 'Escape' && typing) return typing.blur();
  if (typing) return;
  const view = VIEWS[Number(event.key) - 1];
  if (view) location.hash = view.id;
  const filter = document.querySelector('input[type=search]');
  if (event.key === '/' && filter) {
    event.preventDefault();
    filter.focus();
  }
});

const darkness = matchMedia('(prefers-color-scheme: dark)');
const isDark = () => (document.documentElement.dataset.theme ?? (darkness.matches ? 'dark' : 'light')) === 'dark';

function themed() {
  document.dispatchEvent(new Event('themed'));
  due = false;
  draw();
}

try {
  const kept = localStorage.getItem('trainband-theme');
  if (kept === 'dark' || kept === 'light') document.documentElement.dataset.theme = kept;
} catch {
  // Without storage, the page follows the system's preference.
}
$('theme').addEventListener('click', () => {
  const theme = isDark() ? 'light' : 'dark';
  document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem('trainband-theme', theme);
  } catch {
    // The choice lasts while the page is open.
  }
  themed();
});
darkness.addEventListener('change', themed);

show();
