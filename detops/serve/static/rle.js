// Decodes masks from COCO compressed run lengths.

// Returns the run lengths, zeros first. A character has 5 bits, lowest first, and a sixth that is
// set if more follow. From the fourth number on, the difference to the last but one is stored.
export function runLengths(text) {
  const counts = [];
  let value = 0;
  let shift = 0;
  for (const character of text) {
    const bits = character.charCodeAt(0) - 48;
    value += (bits & 31) * 2 ** shift;
    shift += 5;
    if (bits & 32) continue;
    if (bits & 16) value -= 2 ** shift;
    counts.push(counts.length > 2 ? value + counts.at(-2) : value);
    value = shift = 0;
  }
  return counts;
}

// Returns a canvas of one colour, cropped to the mask, and its position.
export function maskCanvas({ size: [height], counts }, [red, green, blue], alpha) {
  const pieces = []; // column, first row, last row + 1
  let at = 0;
  let left = Infinity, top = Infinity, right = 0, bottom = 0;
  for (const [index, length] of runLengths(counts).entries()) {
    const end = at + length;
    while (index % 2 && at < end) {
      const column = Math.floor(at / height);
      const stop = Math.min(end, (column + 1) * height);
      const first = at - column * height;
      const last = stop - column * height;
      pieces.push([column, first, last]);
      left = Math.min(left, column);
      right = Math.max(right, column + 1);
      top = Math.min(top, first);
      bottom = Math.max(bottom, last);
      at = stop;
    }
    at = end;
  }
  if (pieces.length === 0) return null;
  const canvas = new OffscreenCanvas(right - left, bottom - top);
  const pixels = new ImageData(canvas.width, canvas.height);
  for (const [column, first, last] of pieces) {
    for (let row = first; row < last; row += 1) {
      pixels.data.set([red, green, blue, alpha], 4 * ((row - top) * canvas.width + column - left));
    }
  }
  canvas.getContext("2d").putImageData(pixels, 0, 0);
  return { canvas, left, top };
}
