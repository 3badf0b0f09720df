// Draws small matrices as coloured squares, with marks.

import { colour } from "./page.js";

export const CELL = 40; // canvas pixels per matrix element
const LOW = [34, 47, 92];
const MIDDLE = [64, 145, 140];
const HIGH = [250, 218, 120];

// Returns a colour for a value in 0..1, from dark blue over green to yellow.
export function heat(value) {
  const clipped = Math.max(0, Math.min(1, value));
  const [from, to] = clipped < 0.5 ? [LOW, MIDDLE] : [MIDDLE, HIGH];
  const fraction = clipped < 0.5 ? 2 * clipped : 2 * clipped - 1;
  return `rgb(${from.map((low, i) => Math.round(low + fraction * (to[i] - low))).join(" ")})`;
}

// Draws rows of values in 0..1. Returns the context, scaled to one unit per element.
export function drawMap(canvas, rows, cell = CELL) {
  canvas.width = cell * rows[0].length;
  canvas.height = cell * rows.length;
  const context = canvas.getContext("2d");
  context.scale(cell, cell);
  for (const [y, row] of rows.entries()) {
    for (const [x, value] of row.entries()) {
      context.fillStyle = heat(value);
      context.fillRect(x, y, 1, 1);
    }
  }
  context.lineWidth = 0.02;
  context.strokeStyle = "rgb(255 255 255 / 0.25)";
  for (let x = 1; x < rows[0].length; x += 1) line(context, [x, 0], [x, rows.length]);
  for (let y = 1; y < rows.length; y += 1) line(context, [0, y], [rows[0].length, y]);
  return context;
}

export function line(context, from, to) {
  context.beginPath();
  context.moveTo(...from);
  context.lineTo(...to);
  context.stroke();
}

export function dot(context, [x, y], radius, fill) {
  context.beginPath();
  context.arc(x, y, radius, 0, 2 * Math.PI);
  context.fillStyle = fill;
  context.fill();
}

export function ring(context, [x, y], radius) {
  context.beginPath();
  context.arc(x, y, radius, 0, 2 * Math.PI);
  context.stroke();
}

// Clears a canvas of this many units with the panel colour.
export function blank(canvas, [width, height], scale) {
  canvas.width = width * scale;
  canvas.height = height * scale;
  const context = canvas.getContext("2d");
  context.fillStyle = colour("--ground");
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.scale(scale, scale);
  return context;
}
