// The page: what is drawn goes to the model, and what it says is shown.
import { rasterise } from './ink.js';
import { Pad } from './pad.js';

const find = (id) => document.getElementById(id);
const percent = (share) => {
  const value = Math.round(share * 1000) / 10;
  return `${value > 0 && value < 10 ? value.toFixed(1) : Math.round(value)}%`;
};

const bars = Array.from({ length: 10 }, (_, digit) => {
  const item = document.createElement('li');
  for (const name of ['name', 'track', 'share']) {
    const part = document.createElement(name === 'track' ? 'div' : 'span');
    part.className = name;
    item.append(part);
  }
  const [name, track, share] = item.children;
  const fill = document.createElement('div');
  fill.className = 'fill';
  track.append(fill);
  track.setAttribute('aria-hidden', 'true');
  name.textContent = String(digit);
  find('bars').append(item);
  return { item, fill, share };
});

let model = null;
let wanted = null; // what is to be predicted next: { image, finished }
let busy = false;
const recent = []; // milliseconds of the last predictions

const pad = new Pad(find('pad'), (finished) => {
  document.body.classList.toggle('drawn', !pad.empty);
  find('undo').disabled = pad.empty;
  find('clear').disabled = pad.empty;
  if (pad.substantial) {
    wanted = { image: rasterise(pad.strokes), finished };
    showInput(wanted.image);
    predict();
  } else {
    wanted = null;
    showNothing();
  }
});

find('undo').addEventListener('click', () => pad.undo());
find('clear').addEventListener('click', () => {
  pad.clear();
  find('pad').focus({ preventScroll: true });
});

/** Predicts the newest drawing; while a prediction runs, only the newest of those that come is kept. */
async function predict() {
  if (busy || model === null) return;
  busy = true;
  find('result').setAttribute('aria-busy', 'true');
  try {
    while (wanted !== null) {
      const { image, finished } = wanted;
      wanted = null;
      const { probabilities, ms } = await model.predict(image);
      if (!pad.empty) show(probabilities, ms, finished);
      await new Promise(requestAnimationFrame);
    }
  } catch (error) {
    fail(error);
  } finally {
    busy = false;
    find('result').setAttribute('aria-busy', 'false');
  }
}

function show(probabilities, ms, finished) {
  const best = probabilities.indexOf(Math.max(...probabilities));
  const second = probabilities.indexOf(Math.max(...probabilities.filter((_, digit) => digit !== best)));
  const sure = probabilities[best];
  const named = (digit) => `${digit === 8 ? 'an' : 'a'} ${digit}`;
  const sentence =
    sure > 0.9 ? `This is ${named(best)}`
    : sure > 0.6 ? `Probably ${named(best)}`
    : `Perhaps ${named(best)}, or ${named(second)}`;
  probabilities.forEach((share, digit) => {
    const { item, fill, share: text } = bars[digit];
    item.classList.toggle('best', digit === best);
    fill.style.transform = `scaleX(${share})`;
    text.textContent = percent(share);
  });
  recent.push(ms);
  if (recent.length > 9) recent.shift();
  const median = [...recent].sort((a, b) => a - b)[Math.floor(recent.length / 2)];
  find('digit').textContent = String(best);
  find('answer').textContent = sentence;
  find('timing').textContent = `in ${median < 0.1 ? 'less than 0.1' : median.toFixed(1)} ms`;
  // A screen reader hears the result of a finished stroke, not each one on the way.
  if (finished) find('spoken').textContent = `${sentence}, ${percent(sure)}`;
}

function showNothing() {
  if (document.body.classList.contains('failed')) return;
  find('digit').textContent = '–';
  find('answer').textContent = model === null ? 'Loading the model…' : 'Ready';
  find('timing').textContent = '\u00a0';
  find('spoken').textContent = model !== null && pad.empty ? 'The pad is empty' : '';
  for (const { item, fill, share } of bars) {
    item.classList.remove('best');
    fill.style.transform = 'scaleX(0)';
    share.textContent = percent(0);
  }
  showInput(new Float32Array(28 * 28));
}

function showInput(image) {
  const canvas = find('seen');
  const pixels = new ImageData(canvas.width, canvas.height);
  image.forEach((ink, at) => pixels.data.set([ink, ink, ink, 255], 4 * at));
  canvas.getContext('2d').putImageData(pixels, 0, 0);
}

function fail(error) {
  console.error(error);
  document.body.classList.add('failed');
  find('digit').textContent = '!';
  find('answer').textContent = `The model does not run: ${error.message}`;
  find('spoken').textContent = find('answer').textContent;
}

showNothing();
try {
  const { load } = await import('./model.js');
  model = await load();
  find('about').textContent =
    `${Math.round(model.nbytes / 1000)} kB of ONNX, ${model.steps.toLocaleString('en')} training steps, ` +
    'ONNX Runtime Web on WebAssembly';
  document.body.dataset.ready = 'true';
  if (pad.empty) showNothing();
  else predict();
} catch (error) {
  fail(error);
}
