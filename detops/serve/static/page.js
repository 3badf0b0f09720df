// Requests and other helpers of the page.

export const $ = (id) => document.getElementById(id);

// Returns the server's JSON, or throws an error with its message.
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

// Creates an element with properties and children.
export function make(name, properties = {}, ...children) {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
}

// Connects a slider with the number next to it; calls back when it moves.
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

// Calls an asynchronous function, one call at a time. Of the calls requested meanwhile, only the
// latest runs.
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
