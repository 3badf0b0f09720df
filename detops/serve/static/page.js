// Requests, and the small things that every part of the page does.

export const $ = (id) => document.getElementById(id);

// The server's answer, or an error with its words.
export async function request(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new Error("the server does not respond");
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => ({}));
  throw new Error(body.error ?? `the server responded with status ${response.status}`);
}

export async function fetchJson(path, options) {
  return (await request(path, options)).json();
}

export function setStatus(element, text, isError = false) {
  element.textContent = text;
  element.classList.toggle("error", isError);
}

// Makes an element with properties and children.
export function make(name, properties = {}, ...children) {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
}

// A slider, and the number that is shown beside it; calls back when it moves.
export function slider(id, onMove, digits = 0) {
  const input = $(id);
  const show = () => ($(`${id}-shown`).textContent = Number(input.value).toFixed(digits));
  input.addEventListener("input", () => {
    show();
    onMove();
  });
  show();
  return { input, show, get value() { return Number(input.value); } };
}

// Calls an asynchronous function with the newest arguments, one call at a time: what was asked for
// while it was under way is skipped but for the last.
export function latestOnly(call) {
  let running = false;
  let waiting = null;
  return async (...args) => {
    waiting = args;
    if (running) return;
    running = true;
    try {
      while (waiting) {
        const next = waiting;
        waiting = null;
        await call(...next);
      }
    } finally {
      running = false;
    }
  };
}

export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);
