// A row for each worker.

import { colour, drawShares, drawSparkline } from '../charts.js';
import { h, setText } from '../dom.js';
import { bytes, count, decimal, duration, NONE, percent, rate } from '../format.js';
import { Table } from '../table.js';

/** The parts of a step, in the order of a bar, and the colour of each. */
const PARTS = [
  ['compute', 'computing', '--series-1'],
  ['ps', 'held at the ps', '--series-2'],
  ['network', 'on the network', '--series-6'],
  ['send', 'sending', '--series-4'],
  ['data', 'waiting for data', '--series-7'],
  ['other', 'the rest', '--series-8'],
];

export const workers = {
  open(root, store) {
    const ink = { live: '', other: '', parts: [] };
    const table = new Table({
      label: 'Workers',
      sort: { key: 'task', down: false },
      empty: 'No worker has joined yet, or none matches. A job without parameter servers is shown by its history, which has no workers.',
      words: (worker) => `${worker.task} ${worker.presence} ${worker.host} ${worker.transport} ${worker.device} ${state(worker, store.job)}`,
      columns: [
        { key: 'task', label: 'Worker', value: (worker) => worker.task, text: (worker) => worker.task + (worker.task === store.job.chief ? ' ★' : ''), title: '★ is the chief' },
        { key: 'state', label: 'State', value: (worker) => state(worker, store.job), draw: (cell, worker) => badge(cell, state(worker, store.job)) },
        { key: 'rate', label: 'Steps/s', right: true, value: (worker) => worker.rate, text: (worker) => rate(worker.rate) },
        {
          key: 'spark',
          label: 'Last minute',
          draw(cell, worker) {
            if (!cell.firstChild) cell.append(h('canvas', { role: 'img', width: 96, height: 22 }));
            const rates = store.sparks.get(worker.task);
            cell.firstChild.setAttribute('aria-label', `steps per second of ${worker.task} over the last minute`);
            drawSparkline(cell.firstChild, rates, worker.presence === 'live' ? ink.live : ink.other);
          },
        },
        {
          key: 'time',
          when: timed,
          label: 'Time',
          title: PARTS.map(([, words]) => words).join(', '),
          value: (worker) => worker.time?.compute ?? 0,
          draw(cell, worker) {
            if (!cell.firstChild) cell.append(h('canvas', { role: 'img', width: 96, height: 22 }));
            const shares = PARTS.map(([part]) => worker.time?.[part] ?? 0);
            const words = PARTS.map(([, text], place) => `${text} ${percent(shares[place])}`).join(', ');
            cell.firstChild.setAttribute('aria-label', `time of ${worker.task}: ${words}`);
            cell.title = words;
            drawShares(cell.firstChild, shares, ink.parts);
          },
        },
        { key: 'staleness', label: 'Staleness', right: true, value: (worker) => worker.staleness, text: (worker) => decimal(worker.staleness, 1) },
        { key: 'loss', label: 'Loss', right: true, value: (worker) => worker.loss, text: (worker) => decimal(worker.loss) },
        { key: 'pushes', label: 'Pushes', right: true, value: (worker) => worker.pushes, text: (worker) => count(worker.pushes) },
        { key: 'dropped', label: 'Dropped', right: true, value: (worker) => worker.dropped, text: (worker) => count(worker.dropped), title: 'Pushes that arrived too late' },
        { key: 'refused', label: 'Not finite', right: true, value: (worker) => worker.refused + worker.non_finite_losses, text: (worker) => count(worker.refused + worker.non_finite_losses), title: 'Gradients and losses that were NaN or infinite' },
        { key: 'share', when: (rows) => rows.some((worker) => worker.share), label: 'Share', right: true, value: (worker) => worker.share, text: (worker) => percent(worker.share), title: 'Of the examples of an update' },
        { key: 'heard', label: 'Heard', right: true, value: (worker) => worker.heard_s, text: (worker) => (worker.heard_s < 10 ? `${worker.heard_s.toFixed(1)} s` : duration(worker.heard_s)), title: 'Since its last heartbeat' },
        { key: 'memory', label: 'Memory', right: true, value: (worker) => worker.memory_bytes, text: (worker) => known(worker.memory_bytes), title: 'Of its process and those that it started; what it holds is shown with the servers' },
        { key: 'device-memory', when: (rows) => rows.some((worker) => worker.device_memory_limit_bytes), label: 'Device memory', right: true, value: (worker) => worker.device_memory_bytes, text: deviceMemory, title: 'In use on its devices, and how much it can have of them' },
        { key: 'device', label: 'Device', value: (worker) => worker.device, text: (worker) => worker.device || NONE, title: 'Its compute devices' },
        { key: 'transport', label: 'Transport', value: (worker) => worker.transport, text: (worker) => worker.transport || '–' },
        { key: 'process', label: 'Process', value: (worker) => `${worker.host} ${worker.pid}`, text: (worker) => `${worker.pid} on ${worker.host}`, long: true, class: 'long' },
      ],
    });
    const filter = h('input', { type: 'search', placeholder: 'Filter, such as worker:1, lost or a host', 'aria-label': 'Filter the workers' });
    filter.addEventListener('input', () => {
      table.filter(filter.value);
      summary();
    });
    const said = h('p', { class: 'secondary', role: 'status' });
    const legend = h('ul', { class: 'legend', 'aria-label': 'How the live workers spend their time' });
    const means = PARTS.map(([part, words, inkName]) => {
      const swatch = h('span', { class: 'swatch' });
      swatch.style.background = `var(${inkName})`;
      const value = h('strong', {});
      legend.append(h('li', {}, swatch, words, value));
      return { part, value };
    });
    root.append(h('div', { class: 'controls' }, filter, said), table.root, legend);

    function summary() {
      const live = store.workers.filter((worker) => worker.presence === 'live');
      const rates = live.map((worker) => worker.rate).sort((a, b) => a - b);
      const text = rates.length ? ` · each ${rate(rates[0])} to ${rate(rates.at(-1))} steps/s, median ${rate(rates[rates.length >> 1])}` : '';
      const measured = live.filter((worker) => Object.keys(worker.time ?? {}).length);
      for (const { part, value } of means) {
        const sum = measured.reduce((total, worker) => total + (worker.time[part] ?? 0), 0);
        setText(value, measured.length ? percent(sum / measured.length) : '');
      }
      const filtered = filter.value ? ` · ${count(table.shown)} match` : '';
      setText(said, store.workers.length ? `${count(live.length)} live of ${count(store.workers.length)}${text}${filtered}` : '');
    }

    return {
      update() {
        ink.live = colour('--series-1');
        ink.other = colour('--ink-3');
        ink.parts = PARTS.map(([, , name]) => colour(name));
        table.update(store.workers);
        legend.hidden = !timed(store.workers);
        summary();
      },
      end: () => table.end(),
    };
  },
};

function timed(workers) {
  return workers.some((worker) => Object.keys(worker.time ?? {}).length);
}

function known(nbytes) {
  return nbytes ? bytes(nbytes) : NONE;
}

function deviceMemory(worker) {
  const limit = worker.device_memory_limit_bytes;
  return limit ? `${bytes(worker.device_memory_bytes)} of ${bytes(limit)}` : NONE;
}

function state(worker, job) {
  if (worker.presence === 'live' && worker.stalled_s) return 'stuck';
  if (worker.presence === 'live' && job.waiting_for.includes(worker.task)) return 'awaited';
  return worker.presence;
}

export function badge(cell, text) {
  if (!cell.firstChild) cell.append(h('span', { class: 'badge' }));
  setText(cell.firstChild, text);
  cell.firstChild.dataset.state = text;
}
