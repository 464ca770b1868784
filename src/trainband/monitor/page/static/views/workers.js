// A row for each worker.

import { colour, drawSparkline } from '../charts.js';
import { h, setText } from '../dom.js';
import { count, decimal, duration, percent, rate } from '../format.js';
import { Table } from '../table.js';

export const workers = {
  id: 'workers',
  title: 'Workers',
  open(root, store) {
    const divided = store.workers.some((worker) => worker.share);
    const ink = { live: '', other: '' };
    const table = new Table({
      label: 'Workers',
      sort: { key: 'task', down: false },
      empty: 'No worker has joined yet, or none matches.',
      words: (worker) => `${worker.task} ${worker.presence} ${worker.host} ${worker.transport} ${state(worker, store.job)}`,
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
        { key: 'staleness', label: 'Staleness', right: true, value: (worker) => worker.staleness, text: (worker) => decimal(worker.staleness, 1) },
        { key: 'loss', label: 'Loss', right: true, value: (worker) => worker.loss, text: (worker) => decimal(worker.loss) },
        { key: 'pushes', label: 'Pushes', right: true, value: (worker) => worker.pushes, text: (worker) => count(worker.pushes) },
        { key: 'dropped', label: 'Dropped', right: true, value: (worker) => worker.dropped, text: (worker) => count(worker.dropped), title: 'Pushes that came too late' },
        { key: 'refused', label: 'Not finite', right: true, value: (worker) => worker.refused + worker.non_finite_losses, text: (worker) => count(worker.refused + worker.non_finite_losses), title: 'Gradients and losses that were NaN or infinite' },
        ...(divided ? [{ key: 'share', label: 'Share', right: true, value: (worker) => worker.share, text: (worker) => percent(worker.share), title: 'Of the examples of an update' }] : []),
        { key: 'heard', label: 'Heard', right: true, value: (worker) => worker.heard_s, text: (worker) => (worker.heard_s < 10 ? `${worker.heard_s.toFixed(1)} s` : duration(worker.heard_s)), title: 'Since its last heartbeat' },
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
    root.append(h('div', { class: 'controls' }, filter, said), table.root);

    function summary() {
      const live = store.workers.filter((worker) => worker.presence === 'live');
      const rates = live.map((worker) => worker.rate).sort((a, b) => a - b);
      const text = rates.length ? ` · each ${rate(rates[0])} to ${rate(rates.at(-1))} steps/s, median ${rate(rates[rates.length >> 1])}` : '';
      const filtered = filter.value ? ` · ${count(table.shown)} match` : '';
      setText(said, `${count(live.length)} live of ${count(store.workers.length)}${text}${filtered}`);
    }

    return {
      update() {
        ink.live = colour('--series-1');
        ink.other = colour('--ink-3');
        table.update(store.workers);
        summary();
      },
      end: () => table.end(),
    };
  },
};

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
