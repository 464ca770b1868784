// The job at a glance.

import { ascending, Chart } from '../charts.js';
import { h, replace, setAttribute, setText } from '../dom.js';
import { bytes, clock, count, decimal, duration, NONE, rate } from '../format.js';

const MARKS = { error: '✕', warning: '!', good: '✓', info: 'i' };
const MOST_EVENTS = 8;
/** The address of a job; a directory has none. */
const OF_A_JOB = /:\d+$/;

export const overview = {
  open(root, store) {
    const tiles = {};
    const grid = h('dl', { class: 'tiles' });
    for (const [key, label] of [
      ['step', 'Global step'],
      ['rate', 'Steps per second'],
      ['examples', 'Examples per second'],
      ['loss', 'Loss'],
      ['left', 'Time left'],
      ['workers', 'Workers'],
      ['ps', 'Parameter servers'],
      ['staleness', 'Staleness'],
    ]) {
      const value = h('span', { class: 'figure' });
      const note = h('span', { class: 'note' });
      const box = h('div', { class: 'tile', 'data-tile': key }, h('dt', {}, label), h('dd', {}, value, note));
      tiles[key] = { value, note, box };
      grid.append(box);
    }
    const bar = h('div', { class: 'fill' });
    const progress = h(
      'div',
      { class: 'progress', role: 'progressbar', 'aria-label': 'Completed steps', 'aria-valuemin': '0', 'aria-valuemax': '100' },
      bar,
    );
    progress.hidden = true; // until the progress is known: without a width the bar would be full
    const alerts = h('section', { class: 'alerts', 'aria-label': 'Alerts' });
    const speed = new Chart({ title: 'Steps per second', kind: 'rate', height: 190, area: true });
    const loss = new Chart({ title: 'Loss', height: 190 });
    const events = h('ol', { class: 'events short' });
    root.append(
      progress,
      alerts,
      grid,
      h('div', { class: 'two' }, speed.element, loss.element),
      h('section', { class: 'card' }, h('h3', {}, 'Latest events'), events, h('p', {}, h('a', { href: '#timeline' }, 'All events'))),
    );
    let alertKey = '';
    let eventKey = '';

    function update() {
      const { job, series } = store;
      const live = store.workers.filter((worker) => worker.presence === 'live').length;
      const up = job.ps.filter((ps) => ps.up).length;
      // A history alone has no tasks, and not always an end.
      const isPast = !job.ps.length && !(job.state === 'waiting' && OF_A_JOB.test(job.source));
      for (const key of ['workers', 'ps', 'staleness']) tiles[key].box.hidden = isPast;
      tiles.left.box.hidden = isPast && job.left_s === null;
      grid.classList.toggle('few', isPast);
      const share = job.last_step ? Math.min(1, job.global_step / job.last_step) : null;
      progress.hidden = share === null;
      if (share !== null) {
        bar.style.width = `${share * 100}%`;
        setAttribute(progress, 'aria-valuenow', String(Math.floor(share * 100)));
      }
      tell(tiles.step, count(job.global_step), job.last_step ? `of ${count(job.last_step)} · ${Math.floor(share * 100)}%` : '');
      tell(tiles.rate, rate(job.rate), job.rule_text && `rule ${job.rule_text}`);
      tell(tiles.examples, rate(job.examples_rate), job.examples_applied ? `${count(job.examples_applied)} so far` : '');
      tell(tiles.loss, decimal(job.loss), job.loss === null ? 'not yet known' : job.ps.length ? 'mean of the latest pushes' : 'the latest');
      tell(tiles.left, duration(job.left_s), job.left_s === null ? '' : `until ${clock(store.now() + job.left_s)}`);
      tell(tiles.workers, store.workers.length ? `${count(live)}` : NONE, store.workers.length ? `of ${count(store.workers.length)} known${job.chief ? ` · chief ${job.chief}` : ''}` : '');
      tell(tiles.ps, job.ps.length ? `${count(up)}` : NONE, job.ps.length ? `of ${count(job.ps.length)} · ${bytes(job.ps.reduce((sum, ps) => sum + ps.shard_bytes, 0))} of params` : 'none in this job');
      tell(tiles.staleness, job.ps.length ? decimal(job.staleness_median, 0) : NONE, job.ps.length ? `p99 ${decimal(job.staleness_p99, 0)} · largest ${count(job.staleness_max)}` : '');
      tiles.ps.value.classList.toggle('alarm', up < job.ps.length && job.state !== 'ended');
      drawAlerts(job);
      speed.update([{ label: 'steps/s', ...ascending(series.at, series.rate ?? []), colour: '--series-1' }], { time: true });
      loss.update([{ label: 'loss', ...ascending(series.at, series.loss ?? []), colour: '--series-2' }], { time: true });
      const newest = store.events.slice(-MOST_EVENTS).reverse();
      const key = newest.map((event) => event.number).join();
      if (key !== eventKey || !events.firstChild) {
        eventKey = key;
        replace(events, newest.length ? newest.map(eventItem) : h('li', { class: 'empty' }, 'No events since the server of this page started.'));
      }
    }

    function drawAlerts(job) {
      const said = [
        ...(job.state === 'waiting' ? [{ severity: 'info', text: OF_A_JOB.test(job.source) ? `Waiting for the job to answer. ${job.reason}` : 'No training has written to this directory yet; its data will appear here.' }] : []),
        ...(job.state === 'unreachable'
          ? [{ severity: 'error', text: `No parameter server has answered for ${duration(store.now() - job.since)}: the job has ended, or they have died. The page shows the state at that time.` }]
          : []),
        ...(job.state === 'ended' ? [{ severity: 'good', text: `The job ended at ${clock(job.since)}. The curves remain.` }] : []),
        ...store.notes.map((text) => ({ severity: 'warning', text })),
        ...job.alerts,
      ];
      const key = JSON.stringify(said);
      if (key === alertKey) return;
      alertKey = key;
      replace(
        alerts,
        said.map((one) =>
          h('p', { class: `alert ${one.severity}` }, h('span', { class: 'mark', 'aria-hidden': 'true' }, MARKS[one.severity]), h('span', {}, one.text)),
        ),
      );
    }

    return {
      update,
      end() {
        speed.end();
        loss.end();
      },
    };
  },
};

function tell(tile, value, note) {
  setText(tile.value, value);
  setText(tile.note, note || '');
}

export function eventItem(event) {
  return h(
    'li',
    { class: `event ${event.severity}` },
    h('time', {}, clock(event.at)),
    h('span', { class: 'mark', 'aria-hidden': 'true' }, MARKS[event.severity]),
    h('span', { class: 'text' }, event.text),
    h('span', { class: 'step' }, event.step ? `step ${count(event.step)}` : ''),
  );
}
