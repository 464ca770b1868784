// Some steps in detail: recorded on request, and drawn on one clock.

import { h, replace, setText } from '../dom.js';
import { bytes, clock, count, percent } from '../format.js';
import { Lanes } from '../lanes.js';

const PARTS = [
  ['compute', 'compute', '--series-1'],
  ['wait for data', 'data', '--series-7'],
  ['encode and send', 'encode and send', '--series-2'],
  ['wait for ps', 'wait for ps', '--series-8'],
  ['other', 'other', '--series-4'],
];
const STEPS = [1, 10, 50, 100];
const LOOK_MS = 500;
const MOST_ROWS = 32;

// The recording is kept while another view is open.
let kept = { number: 0, trace: null };

export const profile = {
  open(root, store) {
    const steps = h('select', {}, STEPS.map((value) => h('option', { value }, count(value))));
    steps.value = '10';
    const button = h('button', { type: 'button', class: 'primary', onclick: order }, 'Record');
    const said = h('p', { class: 'secondary', role: 'status' });
    const link = h('a', { href: '/api/profile/trace.json', download: 'trainband-trace.json', hidden: true }, 'Download the trace');
    const shown = h('div', {});
    root.append(
      h('div', { class: 'controls' }, button, h('label', {}, steps, ' steps of each worker'), said, link),
      shown,
    );
    let timer = null;
    let lanes = null;
    let ended = false;

    async function order() {
      button.disabled = true;
      try {
        const answer = await fetch(`/api/profile?steps=${steps.value}`, { method: 'POST', headers: { 'x-trainband-order': 'record' } });
        if (!answer.ok) throw new Error(await answer.text());
        tell(await answer.json());
      } catch (error) {
        button.disabled = false;
        setText(said, `Could not record: ${error.message}`);
      }
    }

    async function look() {
      timer = null;
      try {
        const answer = await fetch('/api/profile');
        if (answer.ok) tell(await answer.json());
      } catch {
        button.disabled = false;
        setText(said, 'The server of this page does not answer.');
      }
    }

    function tell(state) {
      if (ended) return;
      const recording = state.state === 'recording';
      button.disabled = recording || store.job?.state !== 'running';
      if (recording) {
        setText(said, state.workers ? `Recording: ${state.came} of ${state.workers} workers have sent their steps …` : 'Recording …');
        timer ??= setTimeout(look, LOOK_MS);
      } else if (state.state === 'failed') setText(said, `Could not record: ${state.error}`);
      else if (state.state === 'done') {
        setText(said, `Recorded at ${clock(state.at)}.`);
        if (kept.number !== state.number) fetchTrace(state.number);
      }
      if (!shown.firstChild) draw();
    }

    async function fetchTrace(number) {
      const answer = await fetch('/api/profile/trace.json');
      if (!answer.ok) return;
      kept = { number, trace: await answer.json() };
      if (!ended) draw();
    }

    function draw() {
      lanes?.end();
      lanes = null;
      const { trace } = kept;
      link.hidden = !trace;
      if (!trace) {
        replace(shown, h('div', { class: 'card empty' },
          h('p', {}, 'Records how the next steps spend their time: each worker, the network, and each parameter server, on one clock.'),
          h('p', {}, 'Training continues meanwhile. Download the trace to see more detail in Perfetto (ui.perfetto.dev).')));
        return;
      }
      const { tasks } = read(trace);
      lanes = new Lanes(tasks, describe);
      replace(shown,
        h('section', { class: 'card' }, h('h3', {}, 'Where the time of a step goes'), summary(tasks)),
        h('section', { class: 'card' }, h('h3', {}, 'Step by step'), lanes.root));
      lanes.draw();
    }

    let looked = false;
    return {
      update() {
        if (!store.viewer.has_profile) {
          button.disabled = true;
          if (!shown.firstChild) replace(shown, h('p', { class: 'card empty' }, 'The parameter servers of a running job record steps. Without them, use fit(profile_steps=(first, last)).'));
          return;
        }
        if (!looked) {
          looked = true;
          look();
        }
        if (timer === null && !button.disabled && store.job?.state !== 'running') button.disabled = true;
        else if (timer === null && button.disabled && store.job?.state === 'running') look();
      },
      end() {
        ended = true;
        clearTimeout(timer);
        lanes?.end();
      },
    };
  },
};

/** The processes of a trace, each with its threads and their events. */
function read(trace) {
  const processes = new Map();
  const at = (pid) => {
    if (!processes.has(pid)) processes.set(pid, { name: '', rank: 0, note: '', threads: new Map() });
    return processes.get(pid);
  };
  const thread = (pid, tid) => {
    const { threads } = at(pid);
    if (!threads.has(tid)) threads.set(tid, { name: '', rank: 0, events: [] });
    return threads.get(tid);
  };
  for (const event of trace.traceEvents) {
    if (event.ph === 'X') thread(event.pid, event.tid).events.push(event);
    else if (event.name === 'process_name') at(event.pid).name = event.args.name;
    else if (event.name === 'process_sort_index') at(event.pid).rank = event.args.sort_index;
    else if (event.name === 'process_labels') at(event.pid).note = event.args.labels;
    else if (event.name === 'thread_name') thread(event.pid, event.tid).name = event.args.name;
    else if (event.name === 'thread_sort_index') thread(event.pid, event.tid).rank = event.args.sort_index;
  }
  const tasks = [...processes.values()].sort((a, b) => a.rank - b.rank);
  return { tasks: tasks.map((task) => ({ ...task, threads: [...task.threads.values()].sort((a, b) => a.rank - b.rank) })) };
}

function describe(task, thread, event) {
  const size = event.args?.bytes === undefined ? '' : `, ${bytes(event.args.bytes)}`;
  const step = event.args?.global_step === undefined ? '' : ` to global step ${count(event.args.global_step)}`;
  return `${task.name}, ${thread.name}: ${event.name}${step}, ${milliseconds(event.dur)}${size}`;
}

function milliseconds(microseconds) {
  const value = microseconds / 1000;
  return `${value >= 100 ? value.toFixed(0) : value >= 1 ? value.toFixed(2) : value.toFixed(3)} ms`;
}

/** A row for each worker: how long its steps took, and how they spent the time. */
function summary(tasks) {
  const rows = [];
  for (const task of tasks) {
    const steps = task.threads.find((one) => one.name === 'steps');
    const whole = steps?.events.filter((event) => event.name === 'step') ?? [];
    if (!whole.length) continue;
    const total = whole.reduce((sum, event) => sum + event.dur, 0);
    const spent = new Map(PARTS.map(([name]) => [name, 0]));
    for (const event of steps.events) if (spent.has(event.name)) spent.set(event.name, spent.get(event.name) + event.dur);
    const known = [...spent.values()].reduce((sum, value) => sum + value, 0);
    spent.set('other', Math.max(0, total - known));
    rows.push({ task: task.name, steps: whole.length, mean: total / whole.length, shares: PARTS.map(([name]) => spent.get(name) / Math.max(total, known)) });
  }
  const head = h('tr', {}, h('th', { scope: 'col' }, 'Worker'), h('th', { scope: 'col', class: 'right' }, 'Time per step'),
    ...PARTS.map(([, label, ink]) => h('th', { scope: 'col', class: 'right' }, swatch(ink), label)), h('th', { scope: 'col', class: 'wide' }, h('span', { class: 'visually-hidden' }, 'Shares as a bar')));
  const body = rows.slice(0, MOST_ROWS).map((row) => {
    const bar = h('div', { class: 'shares', 'aria-hidden': 'true' });
    row.shares.forEach((share, place) => {
      const part = h('span', {});
      part.style.flexGrow = String(share);
      part.style.background = `var(${PARTS[place][2]})`;
      if (share > 0) bar.append(part);
    });
    return h('tr', {}, h('th', { scope: 'row', class: 'mono' }, row.task), h('td', { class: 'right' }, milliseconds(row.mean)),
      ...row.shares.map((share) => h('td', { class: 'right' }, percent(share))), h('td', { class: 'wide' }, bar));
  });
  return h('div', { class: 'table', tabindex: 0, role: 'region', 'aria-label': 'Where the time goes' }, h('table', {}, h('thead', {}, head), h('tbody', {}, body)));
}

function swatch(ink) {
  const mark = h('span', { class: 'swatch' });
  mark.style.background = `var(${ink})`;
  return mark;
}
