// The page's copy of the job's state. It outlives the connection, the server and the job.

const MOST_ROWS = 4000;
const MOST_EVENTS = 2000;
const SPARK_POINTS = 60;

export class Store extends EventTarget {
  job = null;
  workers = [];
  variables = [];
  checkpoints = [];
  runs = [];
  notes = [];
  events = [];
  series = { at: [] };
  /** Whether the series comes from a history; it is then resent whole when it grows. */
  isPast = false;
  sparks = new Map();
  viewer = {};
  /** Seconds that this machine's clock is ahead of the server's. */
  ahead = 0;

  now() {
    return Date.now() / 1000 - this.ahead;
  }

  full(data) {
    this.sparks = new Map(Object.entries(data.sparks));
    this.events = data.events;
    this.viewer = data.viewer;
    this.ahead = Date.now() / 1000 - data.viewer.now;
    this.series = data.series;
    this.changed({ ...data, series: data.is_past ? data.series : null });
    this.#take(data.job);
    this.#tell();
  }

  next(job) {
    this.#take(job);
    if (job.state === 'running' && !this.isPast) {
      this.#addRow(job);
      this.#addSparks();
    }
    this.#tell();
  }

  addEvents(events) {
    this.events.push(...events);
    if (this.events.length > MOST_EVENTS) this.events.splice(0, this.events.length - MOST_EVENTS);
    this.dispatchEvent(new CustomEvent('happened', { detail: events }));
    this.#tell();
  }

  changed({ variables, checkpoints, runs, notes, series }) {
    Object.assign(this, { variables, checkpoints, runs, notes });
    this.isPast = Boolean(series);
    if (series) this.series = series;
    this.#tell();
  }

  #take(job) {
    const { columns, rows } = job.workers;
    this.workers = rows.map((row) => Object.fromEntries(columns.map((name, place) => [name, row[place]])));
    this.job = job;
  }

  #addRow(job) {
    const live = this.workers.filter((worker) => worker.presence === 'live').length;
    const values = { ...job, staleness: job.staleness_median, workers: live };
    for (const [name, column] of Object.entries(this.series)) column.push(values[name] ?? null);
    const length = this.series.at.length;
    if (length <= MOST_ROWS) return;
    // The older half keeps every second row.
    const kept = (_, place) => place >= length / 2 || place % 2 === 0;
    for (const name of Object.keys(this.series)) this.series[name] = this.series[name].filter(kept);
  }

  #addSparks() {
    const known = new Map();
    for (const worker of this.workers) {
      const rates = this.sparks.get(worker.task) ?? [];
      rates.push(worker.rate ?? 0);
      if (rates.length > SPARK_POINTS) rates.shift();
      known.set(worker.task, rates);
    }
    this.sparks = known;
  }

  #tell() {
    this.dispatchEvent(new Event('news'));
  }
}
