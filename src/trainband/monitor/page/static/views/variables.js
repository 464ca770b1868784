// All variables, and their servers.

import { h, replace, setText, svg } from '../dom.js';
import { bytes, count, decimal, NONE } from '../format.js';
import { Table } from '../table.js';

const elements = (variable) => variable.shape.reduce((product, length) => product * length, 1);

export const variables = {
  open(root, store) {
    const table = new Table({
      label: 'Variables',
      sort: null,
      empty: 'The model is not defined yet, or no variable matches.',
      words: (variable) => `${variable.name} ${variable.dtype} ${where(variable)}`,
      columns: [
        { key: 'name', label: 'Name', value: (one) => one.name, draw: (cell, one) => drawName(cell, one), class: 'mono name' },
        { key: 'type', label: 'Type', value: (one) => one.dtype, text: (one) => `${one.dtype}[${one.shape.join(',')}]`, class: 'mono' },
        { key: 'elements', label: 'Elements', right: true, value: elements, text: (one) => count(elements(one)) },
        { key: 'size', label: 'Size', right: true, value: (one) => one.nbytes, text: (one) => bytes(one.nbytes) },
        { key: 'where', label: 'Where', value: where, text: where, class: 'mono long', long: true },
      ],
    });
    const box = h('dialog', { class: 'card', 'aria-label': 'Values of a variable' });

    function drawName(cell, variable) {
      cell.title = variable.name;
      if (!store.viewer.has_values) return setText(cell, variable.name);
      if (!cell.firstChild) cell.append(h('button', { type: 'button', class: 'link', title: 'Norm and histogram' }));
      setText(cell.firstChild, variable.name);
      cell.firstChild.onclick = () => show(variable.name);
      return undefined;
    }

    async function show(name) {
      const close = h('button', { type: 'button', class: 'close', 'aria-label': 'Close', onclick: () => box.close() }, '×');
      const told = (...parts) => replace(box, close, h('h3', { class: 'mono' }, name), ...parts);
      told(h('p', {}, 'Reading …'));
      if (!box.open) box.showModal();
      try {
        const answer = await fetch(`/api/values?name=${encodeURIComponent(name)}`);
        if (!answer.ok) return told(h('p', {}, await answer.text()));
        const found = await answer.json();
        return told(...described(found));
      } catch {
        return told(h('p', {}, 'The server of this page does not answer.'));
      }
    }

    const filter = h('input', { type: 'search', placeholder: 'Filter, such as kernel or ps:1', 'aria-label': 'Filter the variables' });
    filter.addEventListener('input', () => table.filter(filter.value));
    const said = h('p', { class: 'secondary', role: 'status' });
    root.append(h('div', { class: 'controls' }, filter, said), table.root, box);
    return {
      update() {
        const all = store.variables;
        table.update(all);
        const total = all.reduce((sum, one) => sum + elements(one), 0);
        setText(said, `${count(all.length)} variables · ${count(total)} elements · ${bytes(all.reduce((sum, one) => sum + one.nbytes, 0))}`);
      },
      end: () => table.end(),
    };
  },
};

function described(found) {
  const facts = [
    ['Global step', count(found.global_step)],
    ['Elements', count(found.elements)],
    ['Norm', decimal(found.norm)],
    ['Mean', decimal(found.mean)],
    ['Standard deviation', decimal(found.deviation)],
    ['Smallest, largest', found.minimum === null ? NONE : `${decimal(found.minimum)}, ${decimal(found.maximum)}`],
    ['Zeros', count(found.zeros)],
    ['Not finite', count(found.elements - found.finite)],
  ];
  const list = h('dl', { class: 'facts' }, facts.map(([name, value]) => h('div', {}, h('dt', {}, name), h('dd', {}, value))));
  if (!found.counts.length) return [list];
  const [width, height] = [480, 150];
  const most = Math.max(...found.counts);
  const bar = width / found.counts.length;
  const bars = found.counts.map((number, place) => {
    const tall = (number / most) * height;
    return svg('rect', { x: place * bar + 0.5, y: height - tall, width: bar - 1, height: tall, class: 'bar' });
  });
  const low = svg('text', { x: 0, y: height + 16, class: 'tick' }, decimal(found.minimum));
  const high = svg('text', { x: width, y: height + 16, class: 'tick', 'text-anchor': 'end' }, decimal(found.maximum));
  const picture = svg('svg', { viewBox: `0 0 ${width} ${height + 22}`, role: 'img', 'aria-label': 'Histogram of the values' }, bars, low, high);
  return [picture, list];
}

function where(variable) {
  const { slices } = variable;
  return slices.map((one) => (slices.length === 1 ? one.ps : `${one.ps}[${one.start}:${one.stop}]`)).join(', ');
}
