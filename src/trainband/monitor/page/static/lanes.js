// Lanes of a trace on a canvas: a band for each task, a lane for each of its threads.

import { colour } from './charts.js';
import { h, setText } from './dom.js';

const INKS = {
  compute: '--series-1', 'wait for data': '--series-7', 'encode and send': '--series-2', 'wait for ps': '--series-8',
  gradient: '--series-6', params: '--series-3', 'check the gradient': '--series-5', update: '--series-4',
  'standby and params': '--series-2',
};
const OTHER = '--series-8';
const FAINT = new Set(['wait for ps', 'rule: wait for the update', 'rule: release the worker', 'wait for data', 'rule']);
const LANE = 18;
const BAND = 22;
const TOP = 24;
const LEAST_SPAN = 20;

export class Lanes {
  constructor(tasks, describe) {
    this.describe = describe;
    this.rows = [];
    let y = TOP;
    for (const task of tasks) {
      this.rows.push({ task, y, head: true });
      y += BAND;
      for (const thread of task.threads) {
        const nested = thread.events.some((event) => event.name === 'step');
        this.rows.push({ task, thread, y, nested });
        y += LANE + (nested ? 6 : 0);
      }
      y += 6;
    }
    this.height = y + 4;
    const all = tasks.flatMap((task) => task.threads.flatMap((thread) => thread.events));
    this.last = Math.max(1, ...all.map((event) => event.ts + event.dur));
    this.from = 0;
    this.to = this.last;
    this.canvas = h('canvas', { tabindex: 0, role: 'img', 'aria-label': `Activity of ${tasks.length} tasks on one clock. Plus and minus zoom, arrows move.` });
    this.said = h('p', { class: 'secondary readout' }, 'Point at a bar for details. Drag to move; plus and minus zoom.');
    const key = (label, title, action) => h('button', { type: 'button', title, 'aria-label': title, onclick: action }, label);
    this.root = h('div', { class: 'lanes' },
      h('div', { class: 'controls' },
        key('+', 'Zoom in', () => this.zoom(0.5)), key('−', 'Zoom out', () => this.zoom(2)),
        key('◀', 'Earlier', () => this.move(-0.3)), key('▶', 'Later', () => this.move(0.3)),
        key('All', 'Show everything', () => this.show(0, this.last)), this.said),
      h('div', { class: 'scroll tall' }, this.canvas));
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(this.root);
    this.themed = () => this.draw();
    document.addEventListener('themed', this.themed);
    this.#listen();
  }

  end() {
    this.observer.disconnect();
    document.removeEventListener('themed', this.themed);
  }

  #listen() {
    const { canvas } = this;
    let held = null;
    canvas.addEventListener('pointerdown', (event) => {
      held = { x: event.clientX, from: this.from, to: this.to };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener('pointerup', () => { held = null; });
    canvas.addEventListener('pointercancel', () => { held = null; });
    canvas.addEventListener('pointermove', (event) => {
      const box = canvas.getBoundingClientRect();
      if (held) {
        const by = ((held.x - event.clientX) / (this.right - this.left)) * (held.to - held.from);
        this.show(held.from + by, held.to + by);
      } else this.#read(event.clientX - box.left, event.clientY - box.top);
    });
    canvas.addEventListener('wheel', (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      const x = event.clientX - canvas.getBoundingClientRect().left;
      this.zoom(event.deltaY > 0 ? 1.25 : 0.8, (x - this.left) / (this.right - this.left));
    }, { passive: false });
    canvas.addEventListener('keydown', (event) => {
      const actions = { '+': () => this.zoom(0.5), '=': () => this.zoom(0.5), '-': () => this.zoom(2), ArrowLeft: () => this.move(-0.2), ArrowRight: () => this.move(0.2), Home: () => this.show(0, this.last) };
      if (!actions[event.key]) return;
      event.preventDefault();
      actions[event.key]();
    });
  }

  zoom(factor, about = 0.5) {
    const middle = this.from + (this.to - this.from) * about;
    this.show(middle - (middle - this.from) * factor, middle + (this.to - middle) * factor);
  }

  move(share) {
    const by = (this.to - this.from) * share;
    this.show(this.from + by, this.to + by);
  }

  show(from, to) {
    const span = Math.min(this.last, Math.max(LEAST_SPAN, to - from));
    this.from = Math.min(Math.max(0, from), this.last - span);
    this.to = this.from + span;
    this.draw();
  }

  #read(x, y) {
    const row = this.rows.find((one) => !one.head && y >= one.y && y < one.y + LANE + (one.nested ? 6 : 0));
    const at = this.from + ((x - this.left) / (this.right - this.left)) * (this.to - this.from);
    const slack = ((this.to - this.from) / (this.right - this.left)) * 2;
    const hits = row?.thread.events.filter((event) => event.ts - slack <= at && at <= event.ts + event.dur + slack) ?? [];
    const hit = hits.reduce((best, event) => (best === null || event.dur < best.dur ? event : best), null);
    if (hit) setText(this.said, this.describe(row.task, row.thread, hit));
  }

  draw() {
    const { canvas } = this;
    const width = Math.max(280, canvas.parentElement?.clientWidth ?? 800);
    const ratio = window.devicePixelRatio || 1;
    canvas.width = width * ratio;
    canvas.height = this.height * ratio;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${this.height}px`;
    this.left = width < 560 ? 118 : 150;
    this.right = width - 8;
    const pen = canvas.getContext('2d');
    pen.scale(ratio, ratio);
    pen.clearRect(0, 0, width, this.height);
    pen.font = '11px system-ui, sans-serif';
    pen.textBaseline = 'middle';
    const x = (at) => this.left + ((at - this.from) / (this.to - this.from)) * (this.right - this.left);
    this.#axis(pen, x);
    for (const row of this.rows) {
      if (row.head) this.#head(pen, row, width);
      else this.#lane(pen, row, x);
    }
  }

  #axis(pen, x) {
    const tick = niceTick((this.to - this.from) / ((this.right - this.left) / 110));
    pen.textAlign = 'left';
    for (let at = Math.ceil(this.from / tick) * tick; at <= this.to; at += tick) {
      pen.fillStyle = colour('--grid');
      pen.fillRect(Math.round(x(at)), TOP - 6, 1, this.height);
      pen.fillStyle = colour('--ink-2');
      const label = `${Number((at / 1000).toFixed(3))} ms`;
      if (x(at) + pen.measureText(label).width + 3 < this.right) pen.fillText(label, x(at) + 3, 10);
    }
  }

  #head(pen, { task, y }, width) {
    pen.fillStyle = colour('--grid');
    pen.fillRect(0, y, width, 1);
    pen.fillStyle = colour('--ink');
    pen.textAlign = 'left';
    pen.font = '600 12px system-ui, sans-serif';
    pen.fillText(task.name, 0, y + 12);
    const after = pen.measureText(task.name).width + 10;
    pen.font = '11px system-ui, sans-serif';
    pen.fillStyle = colour('--ink-2');
    if (task.note && width > 560) pen.fillText(task.note, after, y + 12);
  }

  #lane(pen, { thread, y, nested }, x) {
    pen.fillStyle = colour('--ink-2');
    pen.textAlign = 'left';
    pen.fillText(fitted(pen, thread.name, this.left - 14), 6, y + LANE / 2);
    pen.save();
    pen.beginPath();
    pen.rect(this.left, y, this.right - this.left, LANE + 6);
    pen.clip();
    for (const event of thread.events) {
      const begin = x(event.ts);
      const end = x(event.ts + event.dur);
      if (end < this.left || begin > this.right) continue;
      if (event.name === 'step') {
        pen.strokeStyle = colour('--ink-3');
        pen.strokeRect(Math.round(begin) + 0.5, y + 0.5, Math.max(1, Math.round(end - begin) - 1), LANE + 4);
        continue;
      }
      const wide = Math.max(1, end - begin - 0.5);
      pen.fillStyle = colour(INKS[event.name] ?? OTHER);
      pen.globalAlpha = FAINT.has(event.name) ? 0.35 : 1;
      const top = nested ? y + 4 : y + 2;
      pen.fillRect(begin, top, wide, LANE - 4);
      pen.globalAlpha = 1;
      if (wide > 34) {
        pen.fillStyle = FAINT.has(event.name) ? colour('--ink') : colour('--card');
        pen.fillText(fitted(pen, event.name, wide - 6), Math.max(begin, this.left) + 3, top + (LANE - 4) / 2 + 0.5);
      }
    }
    pen.restore();
  }
}

/** A round distance between ticks, at least this many microseconds. */
function niceTick(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((one) => one * power).find((one) => one >= least);
}

function fitted(pen, text, width) {
  if (pen.measureText(text).width <= width) return text;
  let kept = text;
  while (kept.length > 1 && pen.measureText(`${kept}…`).width > width) kept = kept.slice(0, -1);
  return kept.length > 1 ? `${kept}…` : '';
}
