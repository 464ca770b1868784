// Curves, drawn by uPlot, and sparklines.

import uPlot from './uplot/uPlot.esm.js';
import { h, setText } from './dom.js';
import { bytes, clock, count, decimal, rate } from './format.js';

export const COLOURS = ['--series-1', '--series-2', '--series-3', '--series-4', '--series-5', '--series-6', '--series-7', '--series-8'];

export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** TensorBoard's exponential moving average, without its bias towards 0 at the start. */
export function smooth(values, weight) {
  if (!weight) return values;
  let last = 0;
  let seen = 0;
  return values.map((value) => {
    if (value === null || value === undefined) return null;
    last = last * weight + (1 - weight) * value;
    seen += 1;
    return last / (1 - weight ** seen);
  });
}

/** Several curves over different x for uPlot: one shared x, null where a curve has no point. */
export function joined(curves) {
  if (curves.length === 1) return [curves[0].x, curves[0].y];
  return uPlot.join(curves.map((curve) => [curve.x, curve.y]));
}

/** Ascending x, as uPlot needs it: after a restart from a checkpoint, steps go back. */
export function ascending(x, y) {
  const points = new Map();
  x.forEach((value, place) => {
    if (value !== null && y[place] !== null && y[place] !== undefined) points.set(value, y[place]);
  });
  const keys = [...points.keys()].sort((a, b) => a - b);
  return { x: keys, y: keys.map((key) => points.get(key)) };
}

/** The same points with a null in every unusually long gap, where nothing was measured. */
export function withGaps({ x, y }) {
  if (x.length < 4) return { x, y };
  const steps = x.slice(1).map((at, place) => at - x[place]).sort((a, b) => a - b);
  const most = Math.max(10, 8 * steps[Math.floor(steps.length * 0.9)]);
  const points = { x: [], y: [] };
  x.forEach((at, place) => {
    if (place && at - x[place - 1] > most) {
      points.x.push((at + x[place - 1]) / 2);
      points.y.push(null);
    }
    points.x.push(at);
    points.y.push(y[place]);
  });
  return points;
}

const WRITERS = { bytes: (value) => `${bytes(value)}/s`, count, rate, decimal: (value) => decimal(value) };

export class Chart {
  #plot = null;
  #box = h('div', { class: 'plot' });
  #key = '';
  #curves = [];
  #options;
  #caption;
  #observer;
  #themed = () => this.#forget();

  constructor({ title, unit = '', kind = 'decimal', height = 220, area = false }) {
    this.#options = { title, unit, kind, height, area };
    this.#caption = h('span', { class: 'visually-hidden' });
    this.value = h('span', { class: 'value' });
    this.element = h(
      'figure',
      { class: 'card chart' },
      h('figcaption', {}, h('span', { class: 'name' }, title), unit && h('span', { class: 'unit' }, unit), this.value, this.#caption),
      this.#box,
    );
    this.#observer = new ResizeObserver(() => this.#size());
    this.#observer.observe(this.#box);
    document.addEventListener('themed', this.#themed);
  }

  end() {
    this.#observer.disconnect();
    document.removeEventListener('themed', this.#themed);
    this.#plot?.destroy();
  }

  /** curves: {label, x, y, colour (name of a variable), faint}; time: whether x is a time; log: of y. */
  update(curves, { time = false, log = false, xLabel = '' } = {}) {
    this.#curves = curves.filter((curve) => curve.x.length);
    // Where several share their x, null is where one of them has no point.
    if (time && this.#curves.length === 1) this.#curves = this.#curves.map((curve) => ({ ...curve, ...withGaps(curve) }));
    const last = this.#curves[0]?.y.at(-1);
    const text = last === undefined || last === null ? 'no values yet' : this.#write(last);
    setText(this.value, text);
    this.#describe(text);
    this.#box.classList.toggle('alone', this.#curves.length < 2);
    const key = JSON.stringify([this.#curves.map((one) => [one.label, one.colour, one.faint]), time, log]);
    if (!this.#curves.length) return this.#forget();
    const data = joined(this.#curves);
    if (log) data.forEach((column, place) => place && (data[place] = column.map((value) => (value > 0 ? value : null))));
    if (this.#plot && key === this.#key) return this.#plot.setData(data);
    this.#forget();
    this.#key = key;
    this.#plot = new uPlot(this.#settings({ time, log, xLabel }), data, this.#box);
    return undefined;
  }

  #legend(value) {
    return value === null || value === undefined ? '–' : this.#write(value);
  }

  #where(value, time) {
    if (value === null || value === undefined) return '–';
    return time ? clock(value) : count(value);
  }

  #write(value) {
    return WRITERS[this.#options.kind](value);
  }

  #describe(text) {
    const values = (this.#curves[0]?.y ?? []).filter((value) => value !== null && value !== undefined);
    if (!values.length) return;
    let low = values[0];
    let high = values[0];
    for (const value of values) {
      if (value < low) low = value;
      if (value > high) high = value;
    }
    setText(this.#caption, ` now ${text}; between ${this.#write(low)} and ${this.#write(high)}`);
  }

  /** Without a legend, the caption shows the value under the cursor. */
  #point(plot, time) {
    if (this.#curves.length !== 1) return;
    const { idx } = plot.cursor;
    const at = idx === null || idx === undefined ? null : plot.data[0][idx];
    const value = at === null ? this.#curves[0].y.at(-1) : plot.data[1][idx];
    if (value === null || value === undefined) return;
    const where = at === null ? '' : ` at ${time ? clock(at) : count(at)}`;
    setText(this.value, `${this.#write(value)}${where}`);
  }

  #forget() {
    this.#plot?.destroy();
    this.#plot = null;
    this.#key = '';
  }

  #size() {
    const width = this.#box.clientWidth;
    if (this.#plot && width) this.#plot.setSize({ width, height: this.#options.height });
  }

  #settings({ time, log, xLabel }) {
    const ink = colour('--ink-2');
    const inks = this.#curves.map((curve) => colour(curve.colour) + (curve.faint ? '55' : ''));
    const grid = { stroke: colour('--grid'), width: 1 };
    const axis = { stroke: ink, grid, ticks: { ...grid, size: 4 }, font: '11px system-ui, sans-serif' };
    const short = this.#options.kind === 'bytes' ? (value) => bytes(value) : abbreviated;
    return {
      width: this.#box.clientWidth || 400,
      height: this.#options.height,
      cursor: { points: { size: 6 }, drag: { x: true, y: false } },
      legend: { live: true, markers: { width: 0, fill: (_, place) => inks[place - 1] } },
      padding: [10, 14, 0, 0],
      scales: { x: { time, range: (plot, low, high) => (plot.data[0].length === 1 ? [low - 30, low + 30] : [low, high]) }, y: { distr: log ? 3 : 1, range: log ? undefined : this.#options.kind === 'decimal' ? fitting : fromZero } },
      hooks: { setCursor: [(plot) => this.#point(plot, time)] },
      axes: [
        { ...axis, size: 30, space: 70, values: time ? (_, splits, __, ___, step) => splits.map((at) => tickOfTime(at, step)) : (_, splits) => ticks(splits, abbreviated) },
        { ...axis, size: (_, labels) => Math.max(54, 16 + 6.5 * Math.max(0, ...(labels ?? []).map((label) => label?.length ?? 0))), values: (_, splits) => ticks(splits, short) },
      ],
      series: [
        { label: time ? 'time' : xLabel || 'step', value: (_, value, __, at) => (at === null ? 'latest' : this.#where(value, time)) },
        ...this.#curves.map((curve, place) => ({
          label: curve.label,
          class: curve.faint ? 'raw' : undefined,
          stroke: inks[place],
          fill: this.#options.area && !curve.faint ? `${colour(curve.colour)}22` : undefined,
          width: curve.faint ? 1 : 1.6,
          points: { show: curve.x.length < 2 },
          spanGaps: this.#curves.length > 1,
          value: (plot, value, index, at) => this.#legend(at === null ? lastOf(plot.data[index]) : value),
        })),
      ],
    };
  }
}

/** The newest value of a curve: shown in the legend unless the cursor points at another. */
function lastOf(values) {
  for (let place = values.length - 1; place >= 0; place -= 1) if (values[place] !== null && values[place] !== undefined) return values[place];
  return null;
}

function fitting(_, low, high) {
  if (low === null || high === null) return [0, 1];
  if (low === high) return [low - (Math.abs(low) || 1) * 0.1, high + (Math.abs(high) || 1) * 0.1];
  const room = (high - low) * 0.08;
  return [low >= 0 && low - room < 0 ? 0 : low - room, high + room];
}

function fromZero(_, low, high) {
  return high > 0 ? [0, high * 1.08] : [0, 1];
}

export function tickOfTime(at, step) {
  if (at === null) return '';
  const date = new Date(at * 1000);
  const two = (value) => String(value).padStart(2, '0');
  if (step >= 86400 || (date.getHours() === 0 && date.getMinutes() === 0)) return `${date.getDate()} ${date.toLocaleString('en', { month: 'short' })}`;
  return `${two(date.getHours())}:${two(date.getMinutes())}${step < 60 ? `:${two(date.getSeconds())}` : ''}`;
}

/** The labels of an axis, with enough digits to tell them apart. */
function ticks(splits, write) {
  for (const digits of [4, 6, 8]) {
    const labels = splits.map((value) => (value === null ? '' : write(value, digits)));
    if (digits === 8 || new Set(labels.filter(Boolean)).size === labels.filter(Boolean).length) return labels;
  }
  return [];
}

function abbreviated(value, digits = 4) {
  const size = Math.abs(value);
  if (size >= 1e9) return `${trimmed(value / 1e9, digits)}G`;
  if (size >= 1e6) return `${trimmed(value / 1e6, digits)}M`;
  if (size >= 1e4) return `${trimmed(value / 1e3, digits)}k`;
  if (size !== 0 && size < 1e-3) return value.toExponential(digits - 4);
  return trimmed(value, digits);
}

function trimmed(value, digits) {
  return String(Number(value.toPrecision(digits)));
}

/** Clears the canvas of a table cell; returns its context, and its size in CSS pixels. */
function cleared(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const width = 96;
  const height = 22;
  if (canvas.width !== width * ratio) {
    canvas.width = width * ratio;
    canvas.height = height * ratio;
  }
  const pen = canvas.getContext('2d');
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  return { pen, width, height };
}

/** A line without axes, on a canvas. */
export function drawSparkline(canvas, values, ink) {
  const { pen, width, height } = cleared(canvas);
  if (!values || values.length < 2) return;
  const top = Math.max(...values, 1e-9);
  pen.beginPath();
  values.forEach((value, place) => {
    const x = width - ((values.length - 1 - place) * width) / 59;
    const y = height - 2 - (value / top) * (height - 4);
    if (place) pen.lineTo(x, y);
    else pen.moveTo(x, y);
  });
  pen.strokeStyle = ink;
  pen.lineWidth = 1.3;
  pen.lineJoin = 'round';
  pen.stroke();
}

/** Shares of a whole, side by side, each in a colour. */
export function drawShares(canvas, shares, inks) {
  const { pen, width, height } = cleared(canvas);
  let x = 0;
  shares.forEach((share, place) => {
    pen.fillStyle = inks[place];
    pen.fillRect(x, 5, share * width, height - 10);
    x += share * width;
  });
}
