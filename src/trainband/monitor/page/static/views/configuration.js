// The configuration of the job.

import { h, replace } from '../dom.js';
import { bytes, count, moment, NONE } from '../format.js';

export const configuration = {
  open(root, store) {
    const box = h('div', { class: 'cards' });
    root.append(box);
    let key = '';
    return {
      update() {
        const { job } = store;
        const transports = tally(store.workers.filter((worker) => worker.transport).map((worker) => worker.transport));
        const devices = tally(store.workers.filter((worker) => worker.device).map((worker) => worker.device));
        const hosts = new Set(store.workers.map((worker) => worker.host).filter(Boolean));
        const oldest = job.ps.reduce((longest, ps) => Math.max(longest, ps.uptime_s), 0);
        const parts = [
          ['The job', [
            ['Source', job.source],
            ['Running since', oldest ? moment(job.heard_at - oldest) : NONE],
            ['Last step', job.last_step ? count(job.last_step) : 'not set'],
            ['Chief', job.chief || NONE],
            ['Workers', `${count(store.workers.length)} on ${count(hosts.size)} ${hosts.size === 1 ? 'machine' : 'machines'}`],
            ['Devices of the workers', devices || NONE],
            ['Transports of the workers', transports || NONE],
            ['Model', `${count(store.variables.length)} variables, ${bytes(store.variables.reduce((sum, one) => sum + one.nbytes, 0))}`],
          ]],
          ['Update rule', Object.entries(job.rule).map(([name, value]) => [name, value === null ? 'none' : String(value)])],
          ['Parameter servers', job.ps.map((ps) => [ps.task, ps.address])],
          ['This page', [
            ['trainband', store.viewer.trainband ?? NONE],
            ['Metrics for Prometheus', '/metrics'],
            ['JSON for programs', '/api/job, /api/series, /api/timeline, /api/checkpoints, /api/variables'],
            ['Keys', '1 to 9: the views · / : filter · Esc: leave the filter'],
          ]],
        ];
        const newKey = JSON.stringify(parts);
        if (newKey === key) return;
        key = newKey;
        replace(box, parts.map(([title, rows]) =>
          h('section', { class: 'card' }, h('h3', {}, title),
            rows.length ? h('dl', { class: 'facts' }, rows.map(([name, value]) => h('div', {}, h('dt', {}, name), h('dd', {}, value)))) : h('p', { class: 'empty' }, 'Not yet known.'))));
      },
    };
  },
};

function tally(words) {
  const counts = new Map();
  for (const word of words) counts.set(word, (counts.get(word) ?? 0) + 1);
  return [...counts].map(([word, number]) => `${word} (${count(number)})`).join(', ');
}
