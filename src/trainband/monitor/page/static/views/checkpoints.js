// The known checkpoints.

import { h, setText } from '../dom.js';
import { bytes, count, decimal, duration, moment, NONE } from '../format.js';
import { Table } from '../table.js';

export const checkpoints = {
  open(root, store) {
    const table = new Table({
      label: 'Checkpoints',
      sort: { key: 'step', down: true },
      empty: 'No checkpoint is known. Parameter servers report each new one; --checkpoint-dir lists those of the directory.',
      columns: [
        { key: 'step', label: 'Global step', value: (one) => one.global_step, text: (one) => count(one.global_step) },
        { key: 'age', label: 'Age', right: true, value: (one) => one.created_at, text: (one) => (one.created_at ? duration(store.now() - one.created_at) : NONE) },
        { key: 'at', label: 'Made', value: (one) => one.created_at, text: (one) => moment(one.created_at) },
        { key: 'size', label: 'Size', right: true, value: (one) => one.nbytes, text: (one) => bytes(one.nbytes) },
        { key: 'seconds', label: 'Took', right: true, value: (one) => one.seconds, text: (one) => (one.seconds === null ? NONE : `${one.seconds.toFixed(1)} s`) },
        { key: 'best', label: 'Best', value: (one) => one.best, text: (one) => (one.best ? `★ ${one.best}` : '') },
        { key: 'metrics', label: 'Metrics', text: (one) => one.damage || Object.entries(one.metrics).map(([name, value]) => `${name} ${decimal(value)}`).join(', '), class: 'long', long: true },
        { key: 'path', label: 'Directory', value: (one) => one.path, text: (one) => one.path || NONE, class: 'mono long', long: true },
      ],
    });
    const said = h('p', { class: 'secondary', role: 'status' });
    root.append(h('div', { class: 'controls' }, said), table.root);
    return {
      update() {
        const all = store.checkpoints;
        table.update(all);
        const newest = all.reduce((best, one) => (best && best.global_step > one.global_step ? best : one), null);
        const behind = newest && store.job.state === 'running' ? ` · ${count(Math.max(0, store.job.global_step - newest.global_step))} steps since the newest` : '';
        setText(said, all.length ? `${count(all.length)} checkpoints · ${bytes(all.reduce((sum, one) => sum + one.nbytes, 0))}${behind}` : '');
      },
      end: () => table.end(),
    };
  },
};
