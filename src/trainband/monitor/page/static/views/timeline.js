// The events: the speed of the job, with a mark for every event, and below it a lane for each task.

import { colour, tickOfTime, withGaps } from '../charts.js';
import { h, replace, setText, svg } from '../dom.js';
import { clock, count, rate } from '../format.js';
import { eventItem } from './overview.js';

const BEGIN = { lost: 'lost', failed: 'failed', silent: 'silent', stuck: 'stuck', preempted: 'preempted', left: 'left' };
const END = new Set(['returned', 'answers', 'restarted', 'moving', 'joined']);
const INKS = {
  lost: '--event-lost',
  failed: '--event-failed',
  silent: '--event-silent',
  unreachable: '--event-silent',
  stuck: '--event-stuck',
  preempted: '--event-preempted',
  left: '--event-left',
  failover: '--event-failover',
  standby_lost: '--event-standby',
  restarted: '--event-failed',
  restored: '--event-failover',
  checkpoint: '--event-checkpoint',
  non_finite: '--event-failed',
  chief: '--event-preempted',
  began: '--event-good',
  ended: '--event-good',
};
const NAMES = {
  lost: 'lost', failed: 'failed', silent: 'silent', unreachable: 'no answer', stuck: 'stuck', preempted: 'preempted',
  left: 'left', failover: 'failover', standby_lost: 'standby lost', restarted: 'restarted', restored: 'restored',
  checkpoint: 'checkpoint', non_finite: 'not finite', chief: 'new chief', began: 'began', ended: 'ended',
};
const MOST_LANES = 40;
/** Seconds between two ticks of the time axis. */
const STEPS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800];
const SPANS = [['all', 'all'], ['300', '5 minutes'], ['3600', 'an hour'], ['86400', 'a day'], ['604800', 'a week']];

const settings = { span: 'all', grave: false };

export const timeline = {
  open(root, store) {
    const picture = h('div', { class: 'picture' });
    const legend = h('ul', { class: 'legend', 'aria-hidden': 'true' });
    const list = h('ol', { class: 'events' });
    const said = h('p', { class: 'secondary' });
    const span = h('select', {}, SPANS.map(([value, label]) => h('option', { value }, label)));
    span.value = settings.span;
    span.addEventListener('change', () => {
      settings.span = span.value;
      update();
    });
    const grave = h('input', { type: 'checkbox' });
    grave.checked = settings.grave;
    grave.addEventListener('change', () => {
      settings.grave = grave.checked;
      key = '';
      update();
    });
    root.append(
      h('div', { class: 'controls' }, h('label', {}, 'The last ', span), h('label', {}, grave, ' Only warnings and errors'), said),
      h('figure', { class: 'card' }, h('figcaption', {}, h('span', { class: 'name' }, 'Steps per second, with events')), picture, legend),
      h('section', { class: 'card' }, h('h3', {}, 'Events'), list),
    );
    let key = '';

    function update() {
      draw();
      const events = store.events.filter((event) => !settings.grave || ['warning', 'error'].includes(event.severity));
      const newKey = `${events.length} ${events.at(-1)?.number}`;
      setText(said, `${count(store.events.length)} events`);
      if (newKey === key && list.firstChild) return;
      key = newKey;
      replace(list, events.length ? events.slice(-500).reverse().map(eventItem) : h('li', { class: 'empty' }, 'No events yet.'));
    }

    function draw() {
      const width = Math.max(300, picture.clientWidth || 800);
      const times = store.series.at;
      const last = Math.max(times.at(-1) ?? 0, store.events.at(-1)?.at ?? 0, store.job.at);
      const oldest = Math.min(times[0] ?? last, store.events[0]?.at ?? last);
      const first = settings.span === 'all' ? oldest : Math.max(oldest, last - Number(settings.span));
      const events = store.events.filter((event) => event.at >= first);
      const lanes = lanesOf(store.events, first, last);
      const left = width < 500 ? 74 : 92;
      const right = width - 12;
      const top = 10;
      const height = 150;
      const laneTop = top + height + 16;
      const bottom = laneTop + lanes.length * 22 + 4;
      const x = (at) => left + ((at - first) / Math.max(1, last - first)) * (right - left);
      const parts = [];
      const points = times.map((at, place) => [at, store.series.rate?.[place] ?? null]).filter(([at, value]) => at >= first && value !== null);
      const highest = Math.max(...points.map(([, value]) => value), 1e-9) * 1.08;
      const y = (value) => top + height - (value / highest) * height;
      const rise = round(highest / 4);
      for (let value = 0; value < highest; value += rise) {
        parts.push(svg('line', { x1: left, x2: right, y1: y(value), y2: y(value), stroke: colour('--grid') }));
        parts.push(svg('text', { x: left - 6, y: y(value) + 4, 'text-anchor': 'end', class: 'tick' }, rate(value)));
      }
      if (points.length > 1) {
        for (const part of stretches(points)) {
          const line = part.map(([at, value]) => `${x(at).toFixed(1)},${y(value).toFixed(1)}`).join(' L');
          parts.push(svg('path', { d: `M${x(part[0][0])},${y(0)} L${line} L${x(part.at(-1)[0])},${y(0)} Z`, fill: `${colour('--series-1')}33` }));
          parts.push(svg('path', { d: `M${line}`, fill: 'none', stroke: colour('--series-1'), 'stroke-width': 1.4 }));
        }
      }
      const used = new Set();
      for (const event of events) {
        const ink = INKS[event.kind];
        if (!ink) continue;
        used.add(event.kind);
        const mark = svg('line', { x1: x(event.at), x2: x(event.at), y1: top, y2: top + height, stroke: colour(ink), 'stroke-width': 1.6, 'stroke-dasharray': event.kind === 'checkpoint' ? '2 3' : 'none' });
        mark.append(svg('title', {}, `${clock(event.at)}: ${event.text}`));
        parts.push(mark);
      }
      lanes.forEach((lane, place) => {
        const middle = laneTop + place * 22 + 11;
        parts.push(svg('line', { x1: left, x2: right, y1: middle, y2: middle, stroke: colour('--grid') }));
        parts.push(svg('text', { x: left - 6, y: middle + 4, 'text-anchor': 'end', class: 'tick' }, lane.task));
        for (const block of lane.blocks) {
          const begin = x(Math.max(first, block.from));
          const bar = svg('rect', { x: begin, y: middle - 7, width: Math.max(3, x(block.to) - begin), height: 14, rx: 2, fill: colour(INKS[block.kind]) });
          bar.append(svg('title', {}, `${lane.task} ${NAMES[block.kind]}, ${clock(block.from)}${block.open ? '' : ` to ${clock(block.to)}`}`));
          parts.push(bar);
        }
      });
      for (const [at, label] of ticksOfTime(first, last, width < 500 ? 5 : 8)) {
        parts.unshift(svg('line', { x1: x(at), x2: x(at), y1: top, y2: bottom, stroke: colour('--grid') }));
        parts.push(svg('text', { x: x(at), y: bottom + 14, 'text-anchor': 'middle', class: 'tick' }, label));
      }
      const grave = events.filter((event) => event.severity === 'error').length;
      replace(picture, svg('svg', { width, height: bottom + 22, role: 'img', 'aria-label': `Speed from ${clock(first)} to ${clock(last)} with ${events.length} events, ${grave} of them errors; they are listed below.` }, parts));
      const kinds = [...new Set([...used, ...lanes.flatMap((lane) => lane.blocks.map((block) => block.kind))])];
      replace(legend, kinds.map((kind) => {
        const swatch = h('span', { class: 'swatch' });
        swatch.style.background = `var(${INKS[kind]})`;
        return h('li', {}, swatch, NAMES[kind]);
      }));
    }

    const observer = new ResizeObserver(() => store.job && draw());
    observer.observe(picture);
    return { update, end: () => observer.disconnect() };
  },
};

/** The least of ..., 1, 2, 5, 10, 20, 50, ... that is not less than the value. */
function round(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return power * [1, 2, 5, 10].find((one) => one * power >= value * 0.999);
}

/** Round times of day from one moment to another, at most this many, with their labels. */
function ticksOfTime(first, last, most) {
  const step = STEPS_S.find((one) => (last - first) / one <= most) ?? STEPS_S.at(-1) * Math.ceil((last - first) / STEPS_S.at(-1) / most);
  const zone = new Date(first * 1000).getTimezoneOffset() * 60;
  const found = [];
  for (let at = Math.ceil((first - zone) / step) * step + zone; at <= last; at += step) found.push([at, tickOfTime(at, step)]);
  return found;
}

/** The points, cut where nothing was measured. */
function stretches(points) {
  const { x, y } = withGaps({ x: points.map(([at]) => at), y: points.map(([, value]) => value) });
  const found = [[]];
  x.forEach((at, place) => {
    if (y[place] === null) found.push([]);
    else found.at(-1).push([at, y[place]]);
  });
  return found.filter((part) => part.length);
}

/** For each affected task: the times during which it was not well. */
function lanesOf(events, first, last) {
  const lanes = new Map();
  const open = new Map();
  for (const event of events) {
    const { task, kind, at } = event;
    if (!/^(ps|worker|chief|evaluator):/.test(task) ) continue;
    const blocks = lanes.get(task) ?? [];
    if (END.has(kind) || BEGIN[kind]) {
      const block = open.get(task);
      if (block) {
        block.to = at;
        block.open = false;
        open.delete(task);
      }
    }
    const begun = BEGIN[kind];
    if (begun || ['failover', 'standby_lost', 'restarted', 'non_finite'].includes(kind)) {
      const block = { kind, from: at, to: begun ? last : at, open: Boolean(begun) };
      blocks.push(block);
      if (begun) open.set(task, block);
      lanes.set(task, blocks);
    }
  }
  const order = (name) => [name.startsWith('ps') ? 0 : 1, Number(name.split(':')[1])];
  return [...lanes]
    .map(([task, blocks]) => ({ task, blocks: blocks.filter((block) => block.to >= first) }))
    .filter((lane) => lane.blocks.length)
    .sort((a, b) => order(a.task)[0] - order(b.task)[0] || order(a.task)[1] - order(b.task)[1])
    .slice(0, MOST_LANES);
}
