// The stream of server-sent events, reopened for as long as the page is open.

const AGAIN_MS = 1000;
/** The server sends something at least every 10 s; the page does not see comments, but there is news every second. */
const SILENT_MS = 15_000;

class Connection {
  /** News received before a store follows. */
  #early = [];
  #take = (...news) => this.#early.push(news);
  #told = () => {};
  #source = null;
  #timer = 0;
  #heard = Date.now();

  constructor() {
    this.#open();
    setInterval(() => this.#look(), 1000);
  }

  /**
   * Passes a store all news, including what came before.
   * @param told is called with null while all is well, else with the time since which the server has been silent.
   */
  follow(store, told) {
    this.#told = told;
    this.#take = (name, data) => {
      told(null);
      store[name](data);
    };
    for (const news of this.#early.splice(0)) this.#take(...news);
  }

  #open() {
    const source = new EventSource('/events');
    this.#source = source;
    const on = (name, taker) =>
      source.addEventListener(name, (event) => {
        this.#heard = Date.now();
        this.#take(taker, JSON.parse(event.data));
      });
    on('full', 'full');
    on('now', 'next');
    on('events', 'addEvents');
    on('changed', 'changed');
    source.onerror = () => this.#again();
  }

  #again() {
    this.#told(this.#heard);
    this.#source?.close();
    this.#source = null;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#open(), AGAIN_MS);
  }

  #look() {
    if (this.#source && Date.now() - this.#heard > SILENT_MS) this.#again();
  }
}

/** Opened as soon as this file is loaded, before the charts and views are. */
export const connection = new Connection();
