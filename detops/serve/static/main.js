// Tabs and colours of the page.

import { startDetect } from "./detect.js";
import { startDeformConv } from "./deform_conv2d.js";
import { startNms } from "./nms.js";
import { startRoIAlign } from "./roi_align.js";

const tabs = [...document.querySelectorAll("[role=tab]")];
let opsStarted = false;

function select(tab) {
  for (const each of tabs) {
    const chosen = each === tab;
    each.setAttribute("aria-selected", String(chosen));
    each.tabIndex = chosen ? 0 : -1;
    document.getElementById(each.getAttribute("aria-controls")).hidden = !chosen;
  }
  if (tab.id === "tab-ops" && !opsStarted) {
    opsStarted = true;
    startNms();
    startRoIAlign();
    startDeformConv();
  }
}

for (const [index, tab] of tabs.entries()) {
  tab.addEventListener("click", () => select(tab));
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = tabs[(index + step + tabs.length) % tabs.length];
    select(next);
    next.focus();
  });
}

const theme = document.getElementById("theme");

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  theme.textContent = name === "dark" ? "Light" : "Dark";
  // Canvases use the colours of the style sheet, but are not redrawn when it changes.
  document.dispatchEvent(new Event("themechange"));
}

theme.addEventListener("click", () => {
  const name = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  localStorage.setItem("theme", name);
  setTheme(name);
});
const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
setTheme(localStorage.getItem("theme") ?? system);

startDetect();
