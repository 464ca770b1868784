// The drawing pad: strokes from a mouse, a finger, a pen or the keyboard, kept as shares of its side.
import { bounds } from './ink.js';

const PEN = 0.055; // the width of the line on the screen
const STEP = 0.03; // how far an arrow key moves the pen
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

export class Pad {
  /**
   * @param {HTMLCanvasElement} canvas
   * @param {(finished: boolean) => void} changed called at every change; `finished` when no stroke is under way.
   */
  constructor(canvas, changed) {
    this.canvas = canvas;
    this.changed = changed;
    this.strokes = [];
    this.pointer = null; // the pointer that draws
    this.cursor = null; // where the keyboard's pen is
    this.lowered = false;
    canvas.addEventListener('pointerdown', (event) => this.#down(event));
    canvas.addEventListener('pointermove', (event) => this.#move(event));
    for (const name of ['pointerup', 'pointercancel', 'lostpointercapture']) {
      canvas.addEventListener(name, (event) => this.#up(event));
    }
    // Safari starts to scroll or to select in spite of touch-action, unless it is told here.
    canvas.addEventListener('touchstart', (event) => event.preventDefault(), { passive: false });
    canvas.addEventListener('contextmenu', (event) => event.preventDefault());
    canvas.addEventListener('keydown', (event) => this.#key(event));
    canvas.addEventListener('blur', () => this.#leave());
    new ResizeObserver(() => this.draw()).observe(canvas);
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => this.draw());
  }

  get empty() {
    return this.strokes.length === 0;
  }

  clear() {
    this.strokes = [];
    this.#stop();
  }

  undo() {
    this.strokes.pop();
    this.#stop();
  }

  #stop() {
    this.pointer = null;
    this.lowered = false;
    this.#update(true);
  }

  #update(finished) {
    this.draw();
    this.changed(finished);
  }

  #at(event) {
    const { left, top, width, height } = this.canvas.getBoundingClientRect();
    return [(event.clientX - left) / width, (event.clientY - top) / height];
  }

  #down(event) {
    if (this.pointer !== null || (event.pointerType === 'mouse' && event.button !== 0)) return;
    event.preventDefault();
    this.canvas.focus({ preventScroll: true, focusVisible: false });
    this.canvas.setPointerCapture(event.pointerId);
    this.pointer = event.pointerId;
    this.cursor = null;
    this.lowered = false;
    this.strokes.push([this.#at(event)]);
    this.#update(false);
  }

  #move(event) {
    if (event.pointerId !== this.pointer) return;
    const events = event.getCoalescedEvents?.() ?? [];
    const stroke = this.strokes.at(-1);
    for (const one of events.length ? events : [event]) stroke.push(this.#at(one));
    this.#update(false);
  }

  #up(event) {
    if (event.pointerId !== this.pointer) return;
    this.pointer = null;
    this.#update(true);
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) {
      if (event.key === 'z' && !event.altKey) {
        event.preventDefault();
        this.undo();
      }
      return;
    }
    const arrow = ARROWS[event.key];
    if (arrow) {
      this.cursor ??= [0.5, 0.25];
      this.cursor = this.cursor.map((value, axis) => Math.min(0.96, Math.max(0.04, value + arrow[axis] * STEP)));
      if (this.lowered) this.strokes.at(-1).push(this.cursor);
      this.#update(!this.lowered);
    } else if (event.key === ' ') {
      this.cursor ??= [0.5, 0.25];
      this.lowered = !this.lowered;
      if (this.lowered) this.strokes.push([this.cursor]);
      this.#update(!this.lowered);
    } else if (event.key === 'Backspace') {
      this.undo();
    } else if (event.key === 'Escape' || event.key === 'Delete') {
      this.clear();
    } else {
      return;
    }
    event.preventDefault();
  }

  #leave() {
    const drew = this.lowered;
    this.lowered = false;
    this.cursor = null;
    if (drew) this.#update(true);
    else this.draw();
  }

  draw() {
    const { canvas } = this;
    const side = Math.round(canvas.clientWidth * devicePixelRatio);
    if (canvas.width !== side || canvas.height !== side) {
      canvas.width = side;
      canvas.height = side;
    }
    const style = getComputedStyle(canvas);
    const context = canvas.getContext('2d');
    context.clearRect(0, 0, side, side);
    context.strokeStyle = style.getPropertyValue('--text');
    context.lineWidth = PEN * side;
    context.lineCap = 'round';
    context.lineJoin = 'round';
    for (const stroke of this.strokes) {
      context.beginPath();
      context.moveTo(stroke[0][0] * side, stroke[0][1] * side);
      // Curves through the middles of neighbouring points have no corners.
      for (let i = 1; i < stroke.length - 1; i += 1) {
        const [[x, y], [nextX, nextY]] = [stroke[i], stroke[i + 1]];
        context.quadraticCurveTo(x * side, y * side, ((x + nextX) / 2) * side, ((y + nextY) / 2) * side);
      }
      const [x, y] = stroke.at(-1);
      context.lineTo(x * side, y * side);
      context.stroke();
    }
    if (this.cursor) {
      const [x, y] = this.cursor;
      context.beginPath();
      context.arc(x * side, y * side, PEN * side * 0.8, 0, 2 * Math.PI);
      context.lineWidth = 3 * devicePixelRatio;
      context.strokeStyle = style.getPropertyValue('--accent');
      context.stroke();
      if (this.lowered) {
        context.fillStyle = style.getPropertyValue('--accent');
        context.fill();
      }
    }
  }

  /** Whether there is more than a dot. */
  get substantial() {
    if (this.empty) return false;
    const [left, top, right, bottom] = bounds(this.strokes);
    return Math.max(right - left, bottom - top) > 0.02;
  }
}
