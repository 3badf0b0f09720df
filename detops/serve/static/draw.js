// Detections on a picture, in the colours of detops.visualize.

import { maskCanvas } from "./rle.js";

const LONG_SIDE = 1200; // small pictures are enlarged to about this, so that tags can be read
const FILL = 120; // opacity of masks, of 255
const FADED = 0.55; // of the lines between keypoints

function paletteColour(palette, label) {
  return palette[(label - 1) % palette.length];
}

const css = ([red, green, blue], alpha = 1) => `rgb(${red} ${green} ${blue} / ${alpha})`;

// picture: a loaded image; detections: as the server sends them; show: {boxes, masks, tags, names};
// about: the server's palette and skeleton. Large pictures keep their size.
export function drawDetections(canvas, picture, detections, show, about) {
  const { width, height } = picture;
  const scale = Math.max(1, Math.min(4, Math.floor(LONG_SIDE / Math.max(width, height))));
  canvas.width = width * scale;
  canvas.height = height * scale;
  const context = canvas.getContext("2d");
  context.drawImage(picture, 0, 0, canvas.width, canvas.height);
  const unit = Math.max(1, Math.max(canvas.width, canvas.height) / 1000);
  // The surest last, so that they lie on top.
  const ordered = [...detections].sort((a, b) => a.score - b.score);
  for (const each of ordered) {
    const colour = paletteColour(about.palette, each.label);
    if (show.masks && each.mask) drawMask(context, each.mask, colour, scale);
  }
  for (const each of ordered) {
    const colour = paletteColour(about.palette, each.label);
    if (show.boxes) {
      const [x1, y1, x2, y2] = each.box.map((value) => value * scale);
      context.lineWidth = 2 * unit;
      context.strokeStyle = css(colour);
      context.strokeRect(x1, y1, x2 - x1, y2 - y1);
    }
    if (each.keypoints) drawKeypoints(context, each.keypoints, colour, scale, unit, about);
  }
  if (show.tags) {
    for (const each of ordered) {
      const score = each.score.toFixed(2);
      const text = show.names ? `${each.name} ${score}` : score;
      drawTag(context, text, each.box, paletteColour(about.palette, each.label), scale, unit);
    }
  }
}

function drawMask(context, mask, colour, scale) {
  const shape = maskCanvas(mask, colour, FILL);
  if (shape === null) return;
  const { canvas, left, top } = shape;
  const place = [left, top, canvas.width, canvas.height].map((value) => value * scale);
  context.drawImage(canvas, ...place);
}

function drawKeypoints(context, values, colour, scale, unit, about) {
  const points = [];
  for (let i = 0; i < values.length; i += 3) {
    points.push([values[i] * scale, values[i + 1] * scale, values[i + 2] > 0]);
  }
  const joined = points.length === 17 ? about.person_skeleton : [];
  context.strokeStyle = css(colour, FADED);
  context.lineWidth = 2 * unit;
  for (const [a, b] of joined) {
    if (!points[a][2] || !points[b][2]) continue;
    context.beginPath();
    context.moveTo(points[a][0], points[a][1]);
    context.lineTo(points[b][0], points[b][1]);
    context.stroke();
  }
  context.fillStyle = css(colour);
  for (const [x, y, seen] of points) {
    if (!seen) continue;
    context.beginPath();
    context.arc(x, y, 3 * unit, 0, 2 * Math.PI);
    context.fill();
  }
}

function drawTag(context, text, box, colour, scale, unit) {
  const size = 12 * unit;
  context.font = `600 ${size}px system-ui, sans-serif`;
  context.textBaseline = "middle";
  const width = context.measureText(text).width + 0.6 * size;
  const height = 1.3 * size;
  // A tag sits on its box; where there is no room it moves back into the picture.
  const x = Math.max(0, Math.min(box[0] * scale, context.canvas.width - width));
  const y = Math.max(0, box[1] * scale - height);
  context.fillStyle = css(colour, 0.9);
  context.fillRect(x, y, width, height);
  context.fillStyle = "#141414";
  context.fillText(text, x + 0.3 * size, y + height / 2);
}
