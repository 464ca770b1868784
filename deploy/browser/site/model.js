// The exported model: ONNX Runtime Web runs it on the CPU, with WebAssembly.
import * as ort from './ort/ort.wasm.bundle.min.mjs';

const DIRECTORY = 'model/';

// One thread needs no special HTTP headers; a network of this size would not gain by more.
ort.env.wasm.numThreads = 1;
ort.env.wasm.wasmPaths = { wasm: new URL('ort/ort-wasm-simd-threaded.wasm', document.baseURI).href };

async function fetched(name) {
  const response = await fetch(DIRECTORY + name);
  if (!response.ok) throw new Error(`${DIRECTORY}${name}: HTTP ${response.status}. Run make_model.py first.`);
  return response;
}

/** Loads the export that make_model.py wrote; `predict` gives the ten probabilities and the milliseconds that they took. */
export async function load() {
  const manifest = await (await fetched('manifest.json')).json();
  const bytes = new Uint8Array(await (await fetched(manifest.format.model)).arrayBuffer());
  const session = await ort.InferenceSession.create(bytes, { executionProviders: ['wasm'] });
  const [input] = session.inputNames;
  const [output] = session.outputNames;

  async function predict(image) {
    const began = performance.now();
    const images = new ort.Tensor('float32', image, [1, 28, 28]);
    const results = await session.run({ [input]: images });
    return { probabilities: Array.from(results[output].data), ms: performance.now() - began };
  }

  await predict(new Float32Array(28 * 28)); // the first run is slower
  return { predict, nbytes: bytes.length, steps: manifest.global_step };
}
