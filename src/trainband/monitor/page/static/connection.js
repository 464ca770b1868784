// The stream of server-sent events, begun again for as long as the page is open.

const AGAIN_MS = 1000;
/** The server sends something every 10 s at least; a comment is none that a page sees, but every second has news. */
const SILENT_MS = 15_000;

export class Connection {
  #store;
  #source = null;
  #timer = 0;
  #heard = Date.now();

  /** @param told is called with null while all is well, else with the time since when the server is silent. */
  constructor(store, told) {
    this.#store = store;
    this.told = told;
    this.#open();
    setInterval(() => this.#look(), 1000);
  }

  #open() {
    const source = new EventSource('/events');
    this.#source = source;
    const on = (name, take) =>
      source.addEventListener(name, (event) => {
        this.#heard = Date.now();
        this.told(null);
        take(JSON.parse(event.data));
      });
    on('full', (data) => this.#store.full(data));
    on('now', (data) => this.#store.next(data));
    on('events', (data) => this.#store.addEvents(data));
    on('changed', (data) => this.#store.changed(data));
    source.onerror = () => this.#again();
  }

  #again() {
    this.told(this.#heard);
    this.#source?.close();
    this.#source = null;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#open(), AGAIN_MS);
  }

  #look() {
    if (this.#source && Date.now() - this.#heard > SILENT_MS) this.#again();
  }
}
