// RoIAlign: the samples of a box on a feature map, and the value of each bin, from the server.

import { $, fetchJson, latestOnly, setStatus, slider } from "./page.js";
import { CELL, dot, drawMap, line } from "./plot.js";

const STEP = 0.1; // feature map pixels per press of an arrow key
const MIN_SIDE = 0.5;
const POOLED_SIDE = 700; // canvas pixels per side of the bins
const CORNER = 0.8; // distance at which the pointer grabs the lower right corner
let box = [2.3, 2.6, 12.1, 9.4]; // in feature map pixels; the first pixel covers 0..1
let answer = null;
let answeredQuery = null;
let pointedBin = null;
let controls;

export function startRoIAlign() {
  controls = {
    bins: slider("roi-bins", load),
    sampling_ratio: slider("roi-ratio", load),
  };
  $("roi-aligned").addEventListener("change", load);
  handleKeys($("roi-map"));
  handleDrags($("roi-map"));
  const pooled = $("roi-bins-map");
  pooled.addEventListener("pointermove", (event) => {
    if (answeredQuery === null) return;
    const bins = answeredQuery.bins;
    const [x, y] = [event.offsetX / pooled.clientWidth, event.offsetY / pooled.clientHeight];
    const [column, row] = [x, y].map((fraction) => Math.min(bins - 1, Math.floor(fraction * bins)));
    pointedBin = row * bins + column;
    draw();
  });
  pooled.addEventListener("pointerleave", () => {
    pointedBin = null;
    draw();
  });
  load();
}

function load() {
  const [x1, y1, x2, y2] = box.map((value) => Number(value.toFixed(3)));
  const { bins, sampling_ratio } = controls;
  const aligned = Number($("roi-aligned").checked);
  fetchLatest({ x1, y1, x2, y2, bins: bins.value, sampling_ratio: sampling_ratio.value, aligned });
}

const fetchLatest = latestOnly(async (query) => {
  try {
    answer = await fetchJson(`api/ops/roi_align?${new URLSearchParams(query)}`);
    answeredQuery = query;
    if (pointedBin >= query.bins ** 2) pointedBin = null;
    draw();
    const counting = answer.samples.filter(([, , counts]) => counts > 0).length;
    const { bins, sampling_ratio } = query;
    setStatus($("roi-status"),
      `${bins * bins} bins of ${sampling_ratio * sampling_ratio} samples; ${counting} of ` +
      `${answer.samples.length} inside the map`);
  } catch (error) {
    setStatus($("roi-status"), error.message, true);
  }
});

function draw() {
  if (answer === null) return;
  const { x1, y1, x2, y2, bins } = answeredQuery;
  const context = drawMap($("roi-map"), answer.map);
  if (pointedBin !== null) drawReads(context);
  context.strokeStyle = "#ffffff";
  context.lineWidth = 0.07;
  context.strokeRect(x1, y1, x2 - x1, y2 - y1);
  context.lineWidth = 0.03;
  for (let i = 1; i < bins; i += 1) {
    const [x, y] = [x1 + (i * (x2 - x1)) / bins, y1 + (i * (y2 - y1)) / bins];
    line(context, [x, y1], [x, y2]);
    line(context, [x1, y], [x2, y]);
  }
  // The op places the centres of pixels at integers.
  for (const [x, y, counts] of answer.samples) {
    if (counts > 0) dot(context, [x + 0.5, y + 0.5], 0.11, "#ff5764");
  }
  dot(context, [x2, y2], 0.2, "#ffffff");
  const rows = Array.from({ length: bins }, (_, row) =>
    answer.values.slice(row * bins, (row + 1) * bins));
  const pooled = drawMap($("roi-bins-map"), rows, Math.round(POOLED_SIDE / bins));
  pooled.font = "0.24px system-ui, sans-serif";
  pooled.textAlign = "center";
  pooled.textBaseline = "middle";
  for (const [index, value] of answer.values.entries()) {
    const [x, y] = [index % bins, Math.floor(index / bins)];
    pooled.fillStyle = value > 0.6 ? "#141414" : "#ffffff";
    pooled.fillText(value.toFixed(2), x + 0.5, y + 0.5);
    if (index !== pointedBin) continue;
    pooled.lineWidth = 0.06;
    pooled.strokeStyle = "#ffffff";
    pooled.strokeRect(x + 0.03, y + 0.03, 0.94, 0.94);
  }
}

function drawReads(context) {
  const width = answer.map[0].length;
  const reads = answer.reads[pointedBin];
  const maxWeight = Math.max(...reads.map(([, weight]) => weight));
  for (const [pixel, weight] of reads) {
    context.fillStyle = `rgb(255 255 255 / ${(0.75 * weight) / maxWeight})`;
    context.fillRect(pixel % width, Math.floor(pixel / width), 1, 1);
  }
}

// Moves the box, or only its lower right corner, and keeps it on the feature map.
function move(dx, dy, cornerAlone) {
  const [height, width] = [answer.map.length, answer.map[0].length];
  let [x1, y1, x2, y2] = box;
  if (cornerAlone) {
    x2 = clip(x2 + dx, x1 + MIN_SIDE, width);
    y2 = clip(y2 + dy, y1 + MIN_SIDE, height);
  } else {
    [dx, dy] = [clip(dx, -x1, width - x2), clip(dy, -y1, height - y2)];
    [x1, y1, x2, y2] = [x1 + dx, y1 + dy, x2 + dx, y2 + dy];
  }
  box = [x1, y1, x2, y2];
  load();
}

function clip(value, low, high) {
  return Math.max(low, Math.min(value, high));
}

function handleKeys(canvas) {
  const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  canvas.addEventListener("keydown", (event) => {
    const step = steps[event.key];
    if (!step || answer === null) return;
    event.preventDefault();
    move(STEP * step[0], STEP * step[1], event.shiftKey);
  });
}

function handleDrags(canvas) {
  const position = (event) => {
    const scale = canvas.width / canvas.clientWidth / CELL;
    return [event.offsetX * scale, event.offsetY * scale];
  };
  let last = null;
  let cornerAlone = false;
  canvas.addEventListener("pointerdown", (event) => {
    last = position(event);
    cornerAlone = Math.hypot(last[0] - box[2], last[1] - box[3]) < CORNER;
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (last === null || answer === null) return;
    const [x, y] = position(event);
    move(x - last[0], y - last[1], cornerAlone);
    last = [x, y];
  });
  for (const end of ["pointerup", "pointercancel"]) {
    canvas.addEventListener(end, () => (last = null));
  }
}
