// From pen strokes to the 28x28 image that the model was trained on, as MNIST's digits were made: the drawing's longer
// side fills 20 pixels, its line always has the same width, and its centre of mass lies in the middle.
// `strokes.py` does the same for the training data; a test compares the two.

export const SIDE = 28;
const BOX = 20;
const WIDTH = 2.2; // of the line, in pixels
const DOT = 0.04; // a drawing smaller than this share of the pad is not enlarged to fill the box

/** The bounding box of strokes as [left, top, right, bottom]. */
export function bounds(strokes) {
  let [left, top, right, bottom] = [Infinity, Infinity, -Infinity, -Infinity];
  for (const stroke of strokes) {
    for (const [x, y] of stroke) {
      left = Math.min(left, x);
      top = Math.min(top, y);
      right = Math.max(right, x);
      bottom = Math.max(bottom, y);
    }
  }
  return [left, top, right, bottom];
}

/** Pieces of line in pixels, each [x, y, dx, dy], so that the drawing fills the box around (0, 0). */
function pieces(strokes) {
  const [left, top, right, bottom] = bounds(strokes);
  const scale = (BOX - WIDTH) / Math.max(right - left, bottom - top, DOT);
  const [middleX, middleY] = [(left + right) / 2, (top + bottom) / 2];
  const found = [];
  for (const stroke of strokes) {
    const points = stroke.map(([x, y]) => [(x - middleX) * scale, (y - middleY) * scale]);
    if (points.length === 1) found.push([...points[0], 0, 0]);
    let last = points[0];
    for (let i = 1; i < points.length; i += 1) {
      const [dx, dy] = [points[i][0] - last[0], points[i][1] - last[1]];
      // Points closer than a fifth of a pixel add work and no ink.
      if (dx * dx + dy * dy < 0.04 && i < points.length - 1) continue;
      found.push([...last, dx, dy]);
      last = points[i];
    }
  }
  return found;
}

/** Ink at every pixel, 0 to 1: a pixel's centre is inked by its distance to the nearest piece of line. */
function drawn(lines, offsetX, offsetY) {
  const image = new Float32Array(SIDE * SIDE);
  const reach = WIDTH / 2 + 0.5;
  for (const [startX, startY, dx, dy] of lines) {
    const [x, y] = [startX + offsetX, startY + offsetY];
    const length = Math.max(dx * dx + dy * dy, 1e-12);
    const [firstRow, lastRow] = span(y, y + dy, reach);
    const [firstColumn, lastColumn] = span(x, x + dx, reach);
    for (let row = firstRow; row <= lastRow; row += 1) {
      for (let column = firstColumn; column <= lastColumn; column += 1) {
        const [px, py] = [column + 0.5 - x, row + 0.5 - y];
        const along = Math.min(1, Math.max(0, (px * dx + py * dy) / length));
        const ink = Math.min(1, reach - Math.hypot(px - along * dx, py - along * dy));
        const at = row * SIDE + column;
        if (ink > image[at]) image[at] = ink;
      }
    }
  }
  return image;
}

function span(from, to, reach) {
  const [low, high] = from < to ? [from, to] : [to, from];
  return [Math.max(0, Math.floor(low - reach)), Math.min(SIDE - 1, Math.ceil(high + reach))];
}

/**
 * The model's input, Float32Array of 28 * 28 values from 0 (paper) to 255 (ink), row by row.
 * @param {number[][][]} strokes lists of [x, y], as shares of the pad; at least one point.
 */
export function rasterise(strokes) {
  const lines = pieces(strokes);
  const image = drawn(lines, SIDE / 2, SIDE / 2);
  let [mass, massX, massY] = [0, 0, 0];
  image.forEach((ink, at) => {
    mass += ink;
    massX += ink * ((at % SIDE) + 0.5);
    massY += ink * (Math.floor(at / SIDE) + 0.5);
  });
  return drawn(lines, SIDE - massX / mass, SIDE - massY / mass).map((ink) => 255 * ink);
}
