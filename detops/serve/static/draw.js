// Draws detections on an image, in the colours of detops.visualize.

import { dot, line } from "./plot.js";
import { maskCanvas } from "./rle.js";

const LONG_SIDE = 1200; // small images are enlarged to about this, so tags are readable
const FILL = 120; // opacity of masks, of 255
const FADED = 0.55; // opacity of the lines between keypoints
// Decoded masks. Decoding takes longer than drawing, and each step of the threshold slider draws
// all of them.
const shapes = new WeakMap();

const css = ([red, green, blue], alpha = 1) => `rgb(${red} ${green} ${blue} / ${alpha})`;

// image: loaded; detections: as the server sends them; show: {boxes, masks, tags, names};
// colours: one per class; skeleton: pairs of keypoints of a person. Large images keep their size.
export function drawDetections(canvas, image, detections, show, colours, skeleton) {
  const { width, height } = image;
  const scale = Math.max(1, Math.min(4, Math.floor(LONG_SIDE / Math.max(width, height))));
  canvas.width = width * scale;
  canvas.height = height * scale;
  const context = canvas.getContext("2d");
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  const unit = Math.max(1, Math.max(canvas.width, canvas.height) / 1000);
  // The most confident detections come last, on top of the others.
  const ordered = [...detections].sort((a, b) => a.score - b.score);
  for (const each of ordered) {
    if (show.masks && each.mask) drawMask(context, each.mask, colours[each.label - 1], scale);
  }
  for (const each of ordered) {
    const colour = colours[each.label - 1];
    if (show.boxes) {
      const [x1, y1, x2, y2] = each.box.map((value) => value * scale);
      context.lineWidth = 2 * unit;
      context.strokeStyle = css(colour);
      context.strokeRect(x1, y1, x2 - x1, y2 - y1);
    }
    if (each.keypoints) drawKeypoints(context, each.keypoints, colour, scale, unit, skeleton);
  }
  if (show.tags) {
    for (const each of ordered) {
      const score = each.score.toFixed(2);
      const text = show.names ? `${each.name} ${score}` : score;
      drawTag(context, text, each.box, colours[each.label - 1], scale, unit);
    }
  }
}

function drawMask(context, mask, colour, scale) {
  if (!shapes.has(mask)) shapes.set(mask, maskCanvas(mask, colour, FILL));
  const shape = shapes.get(mask);
  if (shape === null) return;
  const { canvas, left, top } = shape;
  const target = [left, top, canvas.width, canvas.height].map((value) => value * scale);
  context.drawImage(canvas, ...target);
}

function drawKeypoints(context, values, colour, scale, unit, skeleton) {
  const points = [];
  for (let i = 0; i < values.length; i += 3) {
    const position = [values[i] * scale, values[i + 1] * scale];
    points.push({ position, visible: values[i + 2] > 0 });
  }
  const edges = points.length === 17 ? skeleton : [];
  context.strokeStyle = css(colour, FADED);
  context.lineWidth = 2 * unit;
  for (const [a, b] of edges) {
    if (points[a].visible && points[b].visible) {
      line(context, points[a].position, points[b].position);
    }
  }
  for (const { position, visible } of points) {
    if (visible) dot(context, position, 3 * unit, css(colour));
  }
}

function drawTag(context, text, box, colour, scale, unit) {
  const size = 12 * unit;
  context.font = `600 ${size}px system-ui, sans-serif`;
  context.textBaseline = "middle";
  const width = context.measureText(text).width + 0.6 * size;
  const height = 1.3 * size;
  // A tag sits on its box, moved into the image if there is no room.
  const x = Math.max(0, Math.min(box[0] * scale, context.canvas.width - width));
  const y = Math.max(0, box[1] * scale - height);
  context.fillStyle = css(colour, 0.9);
  context.fillRect(x, y, width, height);
  context.fillStyle = "#141414";
  context.fillText(text, x + 0.3 * size, y + height / 2);
}
