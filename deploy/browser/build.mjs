// Copies what the page needs of ONNX Runtime Web into site/ort; run by `npm run build`.
import { copyFileSync, mkdirSync, statSync } from 'node:fs';

const from = new URL('node_modules/onnxruntime-web/dist/', import.meta.url);
const to = new URL('site/ort/', import.meta.url);
mkdirSync(to, { recursive: true });
for (const name of ['ort.wasm.bundle.min.mjs', 'ort-wasm-simd-threaded.wasm']) {
  copyFileSync(new URL(name, from), new URL(name, to));
  console.log(`site/ort/${name}: ${statSync(new URL(name, to)).size.toLocaleString('en')} bytes`);
}
