// Boxes before and after NMS. The server sends the boxes that each threshold suppresses; the page
// selects one threshold.

import { $, colour, fetchJson, latestOnly, setStatus, slider } from "./page.js";
import { blank, line } from "./plot.js";

const SCALE = 2;
let scene = null;
let seed = 0;
let threshold;

export function startNms() {
  threshold = slider("nms-threshold", draw, 2);
  const objects = slider("nms-objects", () => load(objects.value));
  $("nms-again").addEventListener("click", () => {
    seed = (seed + 1) % 10_000;
    load(objects.value);
  });
  document.addEventListener("themechange", draw);
  load(objects.value);
}

const load = latestOnly(async (objects) => {
  try {
    const next = await fetchJson(`api/ops/nms?seed=${seed}&objects=${objects}`);
    const first = scene === null;
    scene = next;
    const { input } = threshold;
    input.min = scene.thresholds[0];
    input.max = scene.thresholds.at(-1);
    input.step = scene.thresholds[1] - scene.thresholds[0];
    if (first) input.value = 0.5;
    threshold.show();
    draw();
  } catch (error) {
    setStatus($("nms-status"), error.message, true);
  }
});

function draw() {
  if (scene === null) return;
  const step = scene.thresholds[1] - scene.thresholds[0];
  const matches = scene.matches[Math.round((threshold.value - scene.thresholds[0]) / step)];
  drawBoxes($("nms-before"), scene.boxes.map(() => true), null);
  drawBoxes($("nms-after"), matches.map((match, index) => match === index), matches);
  const kept = new Set(matches).size;
  setStatus($("nms-status"), `${kept} of ${scene.boxes.length} boxes are kept`);
}

function drawBoxes(canvas, kept, matches) {
  const context = blank(canvas, scene.size, SCALE);
  context.strokeStyle = colour("--faint");
  context.lineWidth = 0.8;
  context.globalAlpha = 0.7;
  for (const [index, box] of scene.boxes.entries()) {
    if (kept[index]) continue;
    rectangle(context, box);
    line(context, middle(box), middle(scene.boxes[matches[index]]));
  }
  context.strokeStyle = colour("--accent");
  context.lineWidth = 1.6;
  for (const [index, box] of scene.boxes.entries()) {
    if (!kept[index]) continue;
    context.globalAlpha = 0.25 + 0.75 * scene.scores[index];
    rectangle(context, box);
  }
}

function rectangle(context, [x1, y1, x2, y2]) {
  context.strokeRect(x1, y1, x2 - x1, y2 - y1);
}

function middle([x1, y1, x2, y2]) {
  return [(x1 + x2) / 2, (y1 + y2) / 2];
}
