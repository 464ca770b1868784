// Prints the model's input for drawings, as the page makes it: node rasterise.mjs INK.js DRAWINGS.json
import { readFileSync } from 'node:fs';

const [ink, drawings] = process.argv.slice(2);
const { rasterise } = await import(ink);
const images = Object.values(JSON.parse(readFileSync(drawings, 'utf8'))).map((strokes) => Array.from(rasterise(strokes)));
console.log(JSON.stringify(images));
