// Values over steps or time, smoothed or not, beside those of earlier runs.

import { ascending, Chart, COLOURS, smooth } from '../charts.js';
import { h, replace } from '../dom.js';
import { clock, count, moment } from '../format.js';

const LIVE = [
  { key: 'loss', title: 'Loss' },
  { key: 'learning_rate', title: 'Learning rate' },
  { key: 'rate', kept: 'steps_per_second', title: 'Steps per second', kind: 'rate' },
  { key: 'examples_rate', kept: 'examples_per_second', title: 'Examples per second', kind: 'rate' },
  { key: 'staleness', title: 'Staleness', unit: 'median, in updates', kind: 'count' },
  { key: 'workers', title: 'Live workers', kind: 'count' },
  { key: 'bytes_in_rate', title: 'Gradients in', kind: 'bytes' },
  { key: 'bytes_out_rate', title: 'Params out', kind: 'bytes' },
];
/** Further series of a history that are not metrics of the training. */
const KEPT = {
  memory_bytes: { title: 'Memory of the process', kind: 'bytes' },
  device_memory_bytes: { title: 'Memory in use on its devices', kind: 'bytes' },
};
/** A job of 1,000 workers would have 3,000 curves of this kind. */
const OF_A_TASK = /^(ps|worker|chief|evaluator):\d+\//;

const settings = { smoothing: 0, log: false, x: 'step', runs: new Set() };
const loaded = new Map();
const loading = new Set();
let chosen = false;

export const curves = {
  open(root, store) {
    const learnt = h('div', { class: 'charts' });
    const speed = h('div', { class: 'charts' });
    const empty = h('p', { class: 'empty' }, 'There are no values yet.');
    const shown = h('output', {}, settings.smoothing.toFixed(2));
    const smoothing = h('input', { type: 'range', min: 0, max: 0.99, step: 0.01, value: settings.smoothing, 'aria-label': 'Smoothing' });
    smoothing.addEventListener('input', () => {
      settings.smoothing = Number(smoothing.value);
      shown.textContent = settings.smoothing.toFixed(2);
      update();
    });
    const log = h('input', { type: 'checkbox' });
    log.checked = settings.log;
    log.addEventListener('change', () => {
      settings.log = log.checked;
      update();
    });
    const over = h('select', {}, ['step', 'time', 'relative'].map((value) => h('option', { value }, { step: 'global step', time: 'time of day', relative: 'time since its start' }[value])));
    over.value = settings.x;
    over.addEventListener('change', () => {
      settings.x = over.value;
      update();
    });
    const runs = h('fieldset', { class: 'runs' });
    root.append(
      h(
        'form',
        { class: 'controls', onsubmit: (event) => event.preventDefault() },
        h('label', {}, 'Smoothing ', smoothing, shown),
        h('label', {}, log, ' Log scale'),
        h('label', {}, 'Over ', over),
      ),
      runs,
      learnt,
      speed,
      empty,
    );
    const charts = new Map();
    let runKey = null;

    /** The run of the directory that is the live job: its history has the earlier values. */
    function current() {
      const since = store.series.at[0];
      const [newest] = store.runs;
      return !store.isPast && newest && since !== undefined && newest.ended_at >= since ? newest : null;
    }

    function drawRuns() {
      const mine = current();
      const others = store.runs.filter((run) => run !== mine);
      const key = others.map((run) => run.name).join('\n');
      if (key === runKey) return;
      runKey = key;
      runs.hidden = !others.length;
      if (!chosen && !mine && store.runs.length) {
        chosen = true; // the newest, until the user chooses: it has metrics that no parameter server knows
        void choose(store.runs[0].name, true);
      }
      replace(
        runs,
        h('legend', {}, mine ? 'Earlier runs of the directory' : 'Runs of the directory'),
        others.map((run) => {
          const place = store.runs.indexOf(run);
          const box = h('input', { type: 'checkbox' });
          box.checked = settings.runs.has(run.name);
          box.addEventListener('change', () => choose(run.name, box.checked));
          const swatch = h('span', { class: 'swatch', 'aria-hidden': 'true' });
          swatch.style.background = `var(${inkOf(place)})`;
          return h('label', { title: `${moment(run.started_at)}, to step ${count(run.steps)}${run.reason ? `: ${run.reason}` : ''}` }, box, swatch, run.name, h('span', { class: 'secondary' }, `${clock(run.started_at)}, to step ${count(run.steps)}`));
        }),
      );
    }

    /** The live run, if any, is blue. */
    function inkOf(place) {
      return COLOURS[(place + (store.isPast || current() ? 0 : 1)) % COLOURS.length];
    }

    async function choose(name, on) {
      if (!on) settings.runs.delete(name);
      else settings.runs.add(name);
      if (on) await load(name);
      update();
    }

    async function load(name) {
      const run = store.runs.find((one) => one.name === name);
      if (!run || loading.has(name) || loaded.get(name)?.points === run.points) return;
      loading.add(name);
      try {
        const answer = await fetch(`/api/runs/${encodeURIComponent(name)}`);
        if (answer.ok) loaded.set(name, await answer.json());
        else loaded.set(name, { ...run, curves: {} });
      } catch {
        return; // the server is away, as the banner says; the next event retries
      } finally {
        loading.delete(name);
      }
      store.dispatchEvent(new Event('news'));
    }

    function points({ step, at, value }) {
      if (settings.x === 'time') return ascending(at, value);
      if (settings.x === 'relative') return ascending(at.map((one) => one - at[0]), value);
      return ascending(step, value);
    }

    /** The live series in the form of a history: a curve for each name. */
    function live() {
      const { at, global_step: step } = store.series;
      return Object.fromEntries(LIVE.map(({ key, kept }) => [kept ?? key, { at, step, value: store.series[key] ?? [] }]));
    }

    /** The live series, preceded by the earlier values of the run's history, and with its metrics. */
    function continued(found, past) {
      const since = store.series.at[0];
      const all = { ...past };
      for (const [name, curve] of Object.entries(found)) {
        if (!curve.value.some((value) => value !== null)) continue;
        const kept = past[name]?.at.filter((at) => at < since).length ?? 0;
        all[name] = Object.fromEntries(['at', 'step', 'value'].map((part) => [part, [...(past[name]?.[part].slice(0, kept) ?? []), ...curve[part]]]));
      }
      return all;
    }

    function draw({ key, kept, title, unit = '', kind = 'decimal' }, sources) {
      const curvesHere = [];
      for (const { label, curves: found, ink } of sources) {
        const given = found[kept ?? key];
        if (!given?.value.some((value) => value !== null)) continue;
        const curve = points(given);
        if (settings.smoothing) {
          curvesHere.push({ label: `${label}, smoothed`, x: curve.x, y: smooth(curve.y, settings.smoothing), colour: ink });
          curvesHere.push({ label, ...curve, colour: ink, faint: true });
        } else curvesHere.push({ label, ...curve, colour: ink });
      }
      if (!curvesHere.length && !charts.has(key)) return;
      if (!charts.has(key)) {
        const chart = new Chart({ title, unit, kind, height: 230 });
        charts.set(key, chart);
        (key === 'loss' || !LIVE.some((one) => one.key === key) ? learnt : speed).append(chart.element);
      }
      const xLabel = settings.x === 'relative' ? 'seconds' : 'step';
      charts.get(key).update(curvesHere, { time: settings.x === 'time', log: settings.log, xLabel });
    }

    function update() {
      drawRuns();
      const sources = [];
      const mine = current();
      if (mine && loaded.get(mine.name)?.points !== mine.points) void load(mine.name);
      if (store.series.at.length && !store.isPast) sources.push({ label: 'this run', curves: continued(live(), loaded.get(mine?.name)?.curves ?? {}), ink: COLOURS[0] });
      store.runs.forEach((run, place) => {
        if (run === mine || !settings.runs.has(run.name)) return;
        if (loaded.get(run.name)?.points !== run.points) void load(run.name);
        const found = loaded.get(run.name);
        if (found) sources.push({ label: run.name, curves: found.curves, ink: inkOf(place) });
      });
      for (const one of LIVE) draw(one, sources);
      const names = new Set(sources.flatMap((source) => Object.keys(source.curves)).filter((name) => !OF_A_TASK.test(name)));
      for (const key of [...names].sort()) {
        if (!LIVE.some((one) => (one.kept ?? one.key) === key)) draw({ key, title: key, ...KEPT[key] }, sources);
      }
      empty.hidden = charts.size > 0;
    }

    return {
      update,
      end() {
        for (const chart of charts.values()) chart.end();
      },
    };
  },
};
