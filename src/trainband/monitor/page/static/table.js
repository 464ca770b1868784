// A sortable, filterable table that draws only its visible rows: a job may have 1,000 workers.

import { h, setAttribute, setText } from './dom.js';

const collator = new Intl.Collator('en', { numeric: true });
const ROW = 34;
const SPARE = 8;

/**
 * columns: {key, label, title, value(row) for sorting, text(row), draw(cell, row) instead of text, right, wide,
 * when(rows): whether there is anything to show}
 */
export class Table {
  #columns;
  #body;
  #head;
  #table;
  #rows = [];
  #seen = [];
  /** The rows of the document, for the records from number #first on, and unused ones. */
  #drawn = [];
  #first = 0;
  #pool = [];
  #above = h('tr', { 'aria-hidden': 'true', class: 'spacer' }, h('td'));
  #below = h('tr', { 'aria-hidden': 'true', class: 'spacer' }, h('td'));
  #sort;
  #filter = '';
  #empty;

  constructor({ label, columns, sort = null, empty = 'There is nothing here yet.', words = (row) => Object.values(row).join(' ') }) {
    this.#columns = columns;
    this.#sort = sort;
    this.#empty = h('p', { class: 'empty' }, empty);
    this.words = words;
    this.#head = columns.map((column) => this.#headCell(column));
    this.#body = h('tbody', {}, this.#above, this.#below);
    this.#table = h('table', { 'aria-label': label }, h('thead', {}, h('tr', { 'aria-rowindex': '1' }, this.#head)), this.#body);
    this.element = h('div', { class: 'table', role: 'region', tabindex: '0', 'aria-label': `${label}, a table that scrolls` }, this.#table);
    this.root = h('div', {}, this.element, this.#empty);
    this.element.addEventListener('scroll', () => this.#draw(false), { passive: true });
    this.#observer = new ResizeObserver(() => this.#draw(false));
    this.#observer.observe(this.element);
  }

  #observer;

  end() {
    this.#observer.disconnect();
  }

  get shown() {
    return this.#seen.length;
  }

  filter(text) {
    this.#filter = text.trim().toLowerCase();
    this.#order();
  }

  update(rows) {
    this.#rows = rows;
    this.#columns.forEach((column, place) => {
      if (!column.when) return;
      const hidden = !column.when(rows);
      if (this.#head[place].hidden === hidden) return;
      this.#head[place].hidden = hidden;
      for (const row of this.#pool) row.cells[place].hidden = hidden;
    });
    this.#order();
  }

  #headCell(column) {
    const classes = [column.right && 'right', column.wide && 'wide'].filter(Boolean).join(' ');
    if (!column.value) return h('th', { scope: 'col', class: classes, title: column.title }, column.label);
    const button = h('button', { type: 'button', title: column.title ?? `Sort by ${column.label}` }, column.label);
    button.addEventListener('click', () => {
      const down = this.#sort?.key === column.key ? !this.#sort.down : Boolean(column.right);
      this.#sort = { key: column.key, down };
      this.#order();
    });
    return h('th', { scope: 'col', class: classes }, button);
  }

  #order() {
    const { key, down } = this.#sort ?? {};
    const column = this.#columns.find((one) => one.key === key);
    this.#columns.forEach((one, place) => {
      if (one === column) setAttribute(this.#head[place], 'aria-sort', down ? 'descending' : 'ascending');
      else this.#head[place].removeAttribute('aria-sort');
    });
    let rows = this.#rows;
    if (this.#filter) rows = rows.filter((row) => this.words(row).toLowerCase().includes(this.#filter));
    if (column) {
      const sign = down ? -1 : 1;
      rows = rows.map((row) => [column.value(row), row]);
      rows.sort(([a], [b]) => sign * compare(a, b));
      rows = rows.map(([, row]) => row);
    }
    this.#seen = rows;
    setAttribute(this.#table, 'aria-rowcount', String(rows.length + 1));
    this.#empty.hidden = rows.length > 0;
    this.element.hidden = rows.length === 0;
    this.#draw();
  }

  /** Draws the visible rows; those already drawn are kept unless `anew`. */
  #draw(anew = true) {
    const height = this.element.clientHeight || 600;
    const first = Math.max(0, Math.min(Math.floor(this.element.scrollTop / ROW) - SPARE, this.#seen.length - 1));
    const last = Math.min(this.#seen.length, first + Math.ceil(height / ROW) + 2 * SPARE);
    if (!anew && first === this.#first && last === this.#first + this.#drawn.length) return;
    const kept = new Map();
    this.#drawn.forEach((row, index) => {
      const place = this.#first + index;
      if (place >= first && place < last) kept.set(place, row);
      else {
        row.element.remove();
        this.#pool.push(row);
      }
    });
    this.#drawn = [];
    this.#first = first;
    let next = this.#above.nextSibling;
    for (let place = first; place < last; place += 1) {
      const row = kept.get(place) ?? this.#pool.pop() ?? this.#newRow();
      if (row.element === next) next = next.nextSibling;
      else next.before(row.element);
      if (anew || !kept.has(place)) this.#fill(row, this.#seen[place], place);
      this.#drawn.push(row);
    }
    this.#above.firstChild.style.height = `${first * ROW}px`;
    this.#below.firstChild.style.height = `${Math.max(0, this.#seen.length - last) * ROW}px`;
    this.#above.hidden = first === 0;
    this.#below.hidden = last >= this.#seen.length;
    this.#above.firstChild.colSpan = this.#below.firstChild.colSpan = this.#columns.length;
  }

  #newRow() {
    const cells = this.#columns.map((column, place) =>
      h(place === 0 ? 'th' : 'td', {
        scope: place === 0 ? 'row' : undefined,
        class: [column.right && 'right', column.wide && 'wide', column.class].filter(Boolean).join(' '),
      }),
    );
    cells.forEach((cell, place) => {
      cell.hidden = this.#head[place].hidden;
    });
    return { element: h('tr', {}, cells), cells };
  }

  #fill(row, record, place) {
    setAttribute(row.element, 'aria-rowindex', String(place + 2));
    this.#columns.forEach((column, index) => {
      const cell = row.cells[index];
      if (cell.hidden) return undefined;
      if (column.draw) return column.draw(cell, record);
      const text = column.text(record);
      setText(cell, text);
      if (column.long) cell.title = text;
      return undefined;
    });
  }
}

function compare(a, b) {
  if (a === b) return 0;
  if (a === null || a === undefined) return 1;
  if (b === null || b === undefined) return -1;
  return typeof a === 'string' ? collator.compare(a, b) : a - b;
}
