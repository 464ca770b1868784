// Figures over steps or time, smoothed or not, beside those of earlier runs.

import { ascending, Chart, COLOURS, smooth } from '../charts.js';
import { h, replace } from '../dom.js';
import { moment } from '../format.js';

const LIVE = [
  { key: 'loss', title: 'Loss' },
  { key: 'rate', title: 'Steps per second', kind: 'rate' },
  { key: 'examples_rate', title: 'Examples per second', kind: 'rate' },
  { key: 'staleness', title: 'Staleness', unit: 'median, in updates', kind: 'count' },
  { key: 'workers', title: 'Live workers', kind: 'count' },
  { key: 'bytes_in_rate', title: 'Gradients in', kind: 'bytes' },
  { key: 'bytes_out_rate', title: 'Params out', kind: 'bytes' },
];
const SKIPPED = new Set(['at', 'step', 'global_step', 'time', 'wall_time']);

const settings = { smoothing: 0, log: false, x: 'step', runs: new Set() };
const loaded = new Map();

export const curves = {
  id: 'curves',
  title: 'Curves',
  open(root, store) {
    const grid = h('div', { class: 'charts' });
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
      grid,
    );
    const charts = new Map();
    let runKey = null;

    function drawRuns() {
      const key = store.runs.map((run) => run.name).join('\n');
      if (key === runKey) return;
      runKey = key;
      runs.hidden = !store.runs.length;
      const live = Boolean(store.series.at.length);
      if (!live && !settings.runs.size && store.runs.length) choose(store.runs[0].name, true);
      replace(
        runs,
        h('legend', {}, live ? 'Compare with' : 'Runs'),
        store.runs.map((run, place) => {
          const box = h('input', { type: 'checkbox' });
          box.checked = settings.runs.has(run.name);
          box.addEventListener('change', () => choose(run.name, box.checked));
          const swatch = h('span', { class: 'swatch', 'aria-hidden': 'true' });
          swatch.style.background = `var(${COLOURS[(place + 1) % COLOURS.length]})`;
          return h('label', { title: moment(run.started_at) }, box, swatch, run.name);
        }),
      );
    }

    async function choose(name, on) {
      if (!on) settings.runs.delete(name);
      else settings.runs.add(name);
      if (on) await load(name);
      update();
    }

    async function load(name) {
      const run = store.runs.find((one) => one.name === name);
      if (!run || loaded.get(name)?.steps === run.steps) return;
      const answer = await fetch(`/api/runs/${encodeURIComponent(name)}`);
      if (answer.ok) loaded.set(name, await answer.json());
    }

    function x(columns) {
      const steps = columns.step ?? columns.global_step;
      const at = columns.at ?? [];
      if (settings.x === 'time') return at;
      if (settings.x === 'relative') return at.map((value) => value - at[0]);
      return steps ?? at.map((_, place) => place);
    }

    function draw({ key, title, unit = '', kind = 'decimal' }, sources) {
      const curvesHere = [];
      for (const { label, columns, ink } of sources) {
        if (!columns[key]?.some((value) => value !== null)) continue;
        const curve = ascending(x(columns), columns[key]);
        if (settings.smoothing) {
          curvesHere.push({ label: `${label}, smoothed`, x: curve.x, y: smooth(curve.y, settings.smoothing), colour: ink });
          curvesHere.push({ label, ...curve, colour: ink, faint: true });
        } else curvesHere.push({ label, ...curve, colour: ink });
      }
      if (!curvesHere.length && !charts.has(key)) return;
      if (!charts.has(key)) {
        const chart = new Chart({ title, unit, kind, height: 230 });
        charts.set(key, chart);
        grid.append(chart.element);
      }
      const xLabel = settings.x === 'relative' ? 'seconds' : 'step';
      charts.get(key).update(curvesHere, { time: settings.x === 'time', log: settings.log, xLabel });
    }

    function update() {
      drawRuns();
      const sources = [];
      if (store.series.at.length) sources.push({ label: 'this run', columns: store.series, ink: COLOURS[0] });
      store.runs.forEach((run, place) => {
        if (!settings.runs.has(run.name)) return;
        if (loaded.get(run.name)?.steps !== run.steps) void load(run.name).then(() => store.dispatchEvent(new Event('news')));
        const found = loaded.get(run.name);
        if (found) sources.push({ label: run.name, columns: found.columns, ink: COLOURS[(place + 1) % COLOURS.length] });
      });
      for (const one of LIVE) draw(one, sources);
      const others = new Set(sources.flatMap((source) => Object.keys(source.columns)));
      for (const key of others) {
        if (!SKIPPED.has(key) && !LIVE.some((one) => one.key === key)) draw({ key, title: key }, sources);
      }
      grid.dataset.empty = String(!charts.size);
      if (!charts.size && !grid.firstChild) grid.append(h('p', { class: 'empty' }, 'There are no values yet.'));
      if (charts.size) grid.querySelector('.empty')?.remove();
    }

    return {
      update,
      end() {
        for (const chart of charts.values()) chart.end();
      },
    };
  },
};
