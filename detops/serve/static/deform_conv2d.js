// Deformable convolution: the positions that its kernel points sample. The server computes them.

import { $, fetchJson, latestOnly, setStatus, slider } from "./page.js";
import { dot, drawMap, line, ring } from "./plot.js";

let controls;

export function startDeformConv() {
  controls = {
    amount: slider("deform-amount", load, 1),
    dilation: slider("deform-dilation", load),
    row: slider("deform-row", load),
    column: slider("deform-column", load),
  };
  $("deform-pattern").addEventListener("change", load);
  load();
}

function load() {
  const values = Object.entries(controls).map(([name, control]) => [name, control.value]);
  fetchLatest(new URLSearchParams([["pattern", $("deform-pattern").value], ...values]));
}

const fetchLatest = latestOnly(async (query) => {
  try {
    const answer = await fetchJson(`api/ops/deform_conv2d?${query}`);
    draw(answer);
    const means = `mean read: ${answer.value.toFixed(3)}, plain ${answer.plain.toFixed(3)}`;
    setStatus($("deform-status"), means);
  } catch (error) {
    setStatus($("deform-status"), error.message, true);
  }
});

function draw({ map, position, regular, moved }) {
  const context = drawMap($("deform-map"), map);
  context.strokeStyle = "#ffffff";
  context.lineWidth = 0.08;
  context.strokeRect(position[0], position[1], 1, 1);
  context.lineWidth = 0.06;
  // The op places the centres of pixels at integers.
  const middle = ([x, y]) => [x + 0.5, y + 0.5];
  for (const [index, from] of regular.entries()) {
    line(context, middle(from), middle(moved[index]));
    ring(context, middle(from), 0.16);
  }
  for (const to of moved) dot(context, middle(to), 0.18, "#ff5764");
}
