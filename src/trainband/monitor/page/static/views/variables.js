// Every variable, and where it lives.

import { h, setText } from '../dom.js';
import { bytes, count } from '../format.js';
import { Table } from '../table.js';

const elements = (variable) => variable.shape.reduce((product, length) => product * length, 1);

export const variables = {
  id: 'variables',
  title: 'Variables',
  open(root, store) {
    const table = new Table({
      label: 'Variables',
      sort: null,
      empty: 'The model is not defined yet, or no variable matches.',
      words: (variable) => `${variable.name} ${variable.dtype} ${where(variable)}`,
      columns: [
        { key: 'name', label: 'Name', value: (one) => one.name, text: (one) => one.name, class: 'mono name', long: true },
        { key: 'type', label: 'Type', value: (one) => one.dtype, text: (one) => `${one.dtype}[${one.shape.join(',')}]`, class: 'mono' },
        { key: 'elements', label: 'Elements', right: true, value: elements, text: (one) => count(elements(one)) },
        { key: 'size', label: 'Size', right: true, value: (one) => one.nbytes, text: (one) => bytes(one.nbytes) },
        { key: 'where', label: 'Where', value: where, text: where, class: 'mono long', long: true },
      ],
    });
    const filter = h('input', { type: 'search', placeholder: 'Filter, such as kernel or ps:1', 'aria-label': 'Filter the variables' });
    filter.addEventListener('input', () => table.filter(filter.value));
    const said = h('p', { class: 'secondary', role: 'status' });
    root.append(h('div', { class: 'controls' }, filter, said), table.root);
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

function where(variable) {
  const { slices } = variable;
  return slices.map((one) => (slices.length === 1 ? one.ps : `${one.ps}[${one.start}:${one.stop}]`)).join(', ');
}
