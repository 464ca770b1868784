// The parameter servers, and the holders of each shard.

import { h, replace } from '../dom.js';
import { bytes, count, decimal, duration, NONE, percent, rate } from '../format.js';
import { Table } from '../table.js';
import { badge } from './workers.js';

/** What a task's memory holds, as in `runtime/memory.py`. */
const MEMORY = [
  ['params', 'Params', 'The current params'],
  ['state', 'State', "The optimizer's state on a server, the worker's own on a worker"],
  ['gradients', 'Gradients', 'Gradients in flight, or held for an update or a standby'],
  ['versions', 'Versions', 'Older versions of params and state, kept or spare'],
  ['buffers', 'Buffers', 'Memory of the transports'],
  ['rest', 'Rest', 'Python, JAX, compiled programs and data'],
];

const NUMBER = (name) => Number(name.split(':')[1]);

export const servers = {
  open(root, store) {
    const table = new Table({
      label: 'Parameter servers',
      sort: { key: 'task', down: false },
      empty: 'This job has no parameter servers.',
      columns: [
        { key: 'task', label: 'Server', value: (ps) => NUMBER(ps.task), text: (ps) => ps.task },
        { key: 'state', label: 'State', value: (ps) => String(ps.up), draw: (cell, ps) => badge(cell, ps.up ? 'up' : store.job.state === 'ended' ? 'ended' : 'silent') },
        { key: 'since', label: 'Since', right: true, value: (ps) => ps.since, text: (ps) => duration(ps.up ? ps.uptime_s : store.now() - ps.since), title: 'Time running, or silent' },
        { key: 'shards', label: 'Shards', draw: (cell, ps) => chips(cell, ps) },
        { key: 'rate', label: 'Updates/s', right: true, value: (ps) => ps.rate, text: (ps) => rate(ps.rate) },
        { key: 'busy', label: 'Updating', right: true, value: (ps) => ps.update_share, text: (ps) => percent(ps.update_share), title: 'Share of its time spent on updates' },
        { key: 'version', label: 'Version', right: true, value: (ps) => ps.version, text: (ps) => count(ps.version) },
        { key: 'in', label: 'Gradients in', right: true, value: (ps) => ps.bytes_in_rate, text: (ps) => `${bytes(ps.bytes_in_rate)}/s` },
        { key: 'out', label: 'Params out', right: true, value: (ps) => ps.bytes_out_rate, text: (ps) => `${bytes(ps.bytes_out_rate)}/s` },
        { key: 'total', label: 'Total', right: true, value: (ps) => ps.bytes_in + ps.bytes_out, text: (ps) => bytes(ps.bytes_in + ps.bytes_out) },
        { key: 'shard', label: 'Shard', right: true, value: (ps) => ps.shard_bytes, text: (ps) => bytes(ps.shard_bytes), title: 'Bytes of its own shard' },
        { key: 'memory', label: 'Memory', right: true, value: (ps) => ps.memory_bytes, text: (ps) => (ps.memory_bytes ? bytes(ps.memory_bytes) : NONE), title: 'Of its process and those that it started; what it holds is shown below' },
        { key: 'staleness', label: 'Staleness p99', right: true, value: (ps) => ps.staleness_p99, text: (ps) => decimal(ps.staleness_p99, 0) },
        { key: 'address', label: 'Address', value: (ps) => ps.address, text: (ps) => ps.address, class: 'mono' },
      ],
    });
    const shards = new Table({
      label: 'Shards',
      sort: { key: 'shard', down: false },
      empty: 'No shard has a primary yet.',
      columns: [
        { key: 'shard', label: 'Shard', value: (shard) => shard.shard, text: (shard) => `shard ${shard.shard}` },
        { key: 'primary', label: 'Primary', value: (shard) => shard.primary, text: (shard) => (shard.primary < 0 ? 'none' : `ps:${shard.primary}`) },
        { key: 'standby', label: 'Standby', value: (shard) => shard.standby, text: (shard) => (shard.standby < 0 ? 'none' : `ps:${shard.standby}`) },
        { key: 'variables', label: 'Variables', right: true, value: (shard) => shard.variables, text: (shard) => count(shard.variables), title: 'Variables that it has rows of' },
        { key: 'size', label: 'Size', right: true, value: (shard) => shard.nbytes, text: (shard) => bytes(shard.nbytes), title: 'Size of its rows of variables' },
        { key: 'term', label: 'Term', right: true, value: (shard) => shard.term, text: (shard) => count(shard.term) },
        { key: 'version', label: 'Version', right: true, value: (shard) => shard.version, text: (shard) => count(shard.version) },
        { key: 'behind', label: 'Standby behind', right: true, value: (shard) => shard.behind, text: (shard) => (shard.standby < 0 ? '–' : `${count(shard.behind)} records`) },
        { key: 'transport', label: 'Transport', value: (shard) => shard.transport, text: (shard) => shard.transport || '–' },
      ],
    });
    const memory = new Table({
      label: 'Memory',
      sort: { key: 'whole', down: true },
      empty: 'No task has reported its memory yet.',
      columns: [
        { key: 'task', label: 'Task', value: (task) => task.task, text: (task) => task.task },
        { key: 'whole', label: 'Whole', right: true, value: (task) => task.memory_bytes, text: (task) => bytes(task.memory_bytes), title: 'Of its process and those that it started; what they share with others is divided' },
        ...MEMORY.map(([part, label, title]) => ({ key: part, label, right: true, value: (task) => task.memory_parts[part] ?? 0, text: (task) => bytes(task.memory_parts[part] ?? 0), title })),
      ],
    });
    let sizes = { of: null, found: new Map() };
    const silent = h('div', { class: 'alerts' });
    const section = h('section', {}, h('h3', {}, 'Shards'), shards.root);
    const held = h('section', {}, h('h3', {}, 'Memory'), memory.root);
    root.append(silent, table.root, section, held);
    return {
      update() {
        const { job } = store;
        table.update(job.ps);
        section.hidden = held.hidden = !job.ps.length;
        memory.update([...job.ps, ...store.workers].filter((task) => Object.keys(task.memory_parts ?? {}).length));
        if (sizes.of !== store.variables) sizes = { of: store.variables, found: sizesOf(store.variables) };
        shards.update(holders(job.ps).map((one) => ({ ...one, ...(sizes.found.get(one.shard) ?? { variables: 0, nbytes: 0 }) })));
        const reasons = job.state === 'ended' ? [] : job.ps.filter((ps) => !ps.up && ps.reason);
        replace(silent, reasons.map((ps) => h('p', { class: 'alert error' }, h('span', { class: 'mark', 'aria-hidden': 'true' }, '✕'), h('span', {}, `${ps.task}: ${ps.reason}`))));
      },
      end() {
        table.end();
        shards.end();
        memory.end();
      },
    };
  },
};

/** The primary of each shard, of the latest term known to any server; also a silent one, unless another took over. */
function holders(servers) {
  const found = new Map();
  for (const ps of servers) {
    for (const replica of ps.replicas) {
      const known = found.get(replica.shard);
      if (replica.role !== 'primary' || (known && (known.up > ps.up || (known.up === ps.up && known.term >= replica.term)))) continue;
      found.set(replica.shard, { ...replica, primary: ps.up ? NUMBER(ps.task) : -1, up: ps.up });
    }
  }
  return [...found.values()];
}

/** For each shard, the number of variables that it has rows of, and the size of these. A slice names the shard's own server. */
function sizesOf(variables) {
  const found = new Map();
  for (const variable of variables) {
    const counted = new Set();
    for (const slice of variable.slices) {
      const shard = NUMBER(slice.ps);
      const sum = found.get(shard) ?? { variables: 0, nbytes: 0 };
      found.set(shard, sum);
      sum.variables += counted.has(shard) ? 0 : 1;
      counted.add(shard);
      sum.nbytes += variable.slices.length === 1 ? variable.nbytes : (variable.nbytes / (variable.shape[0] || 1)) * (slice.stop - slice.start);
    }
  }
  return found;
}

function chips(cell, ps) {
  const held = ps.replicas.filter((replica) => replica.role !== 'empty');
  const key = JSON.stringify([ps.up, ...held.map((replica) => [replica.shard, replica.role, replica.term])]);
  if (cell.dataset.key === key) return;
  cell.dataset.key = key;
  replace(
    cell,
    held.map((replica) => h('span', { class: `chip ${ps.up ? replica.role : 'past'}`, title: `${ps.up ? '' : 'When last heard from: '}${replica.role} of shard ${replica.shard}, term ${replica.term}` }, `${replica.shard} ${replica.role}${replica.term > 1 ? `, term ${replica.term}` : ''}`)),
  );
}
