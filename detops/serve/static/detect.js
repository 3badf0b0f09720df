// The first tab: sends a photograph to the server, and shows the detections above a threshold.

import { drawDetections } from "./draw.js";
import { $, fetchJson, latestOnly, make, request, setStatus, slider } from "./page.js";
import { asCoco, asJson, saveImage, saveText } from "./save.js";

const MAX_LISTED = 200; // maximum rows in the table of detections

let about;
let photograph = null; // {name, blob}
let answer = null; // the server's response, plus the name of the photograph and its image
let threshold;

export async function startDetect() {
  try {
    about = await fetchJson("api/about");
  } catch (error) {
    setStatus($("status"), error.message, true);
    return;
  }
  fillModels();
  const range = $("threshold");
  range.min = about.score_floor;
  range.value = Math.max(0.5, about.score_floor);
  threshold = slider("threshold", show, 2);
  for (const name of about.samples) {
    const button = make("button", { type: "button", textContent: `Try: ${name}` });
    button.addEventListener("click", () => trySample(name));
    $("samples").append(button);
  }
  for (const id of ["show-boxes", "show-masks", "show-tags"]) $(id).addEventListener("change", show);
  for (const id of ["model", "other"]) $(id).addEventListener("change", detect);
  $("controls").addEventListener("submit", (event) => event.preventDefault());
  $("file").addEventListener("change", () => loadFile($("file").files[0]));
  handleDrops();
  handleSaves();
}

function fillModels() {
  for (const { name } of about.models) {
    $("model").append(make("option", { value: name, textContent: name }));
    $("other").append(make("option", { value: name, textContent: name }));
  }
  $("other").prepend(make("option", { value: "", textContent: "nothing", selected: true }));
}

function handleDrops() {
  const drop = $("drop");
  // On the whole page: a browser opens a file that is dropped elsewhere.
  document.addEventListener("dragover", (event) => {
    event.preventDefault();
    drop.classList.add("over");
  });
  document.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) drop.classList.remove("over");
  });
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    drop.classList.remove("over");
    loadFile(event.dataTransfer.files[0]);
  });
}

async function trySample(name) {
  try {
    const response = await request(`api/samples/${encodeURIComponent(name)}`);
    loadFile(await response.blob(), name);
  } catch (error) {
    setStatus($("status"), error.message, true);
  }
}

function loadFile(blob, name = blob?.name) {
  if (!blob) return;
  if (blob.size > about.max_bytes) {
    const [size, most] = [blob.size, about.max_bytes].map((n) => (n / 1e6).toFixed(1));
    setStatus($("status"), `${name} has ${size} MB; the limit is ${most} MB`, true);
    return;
  }
  photograph = { name, blob };
  detect();
}

const detect = latestOnly(async () => {
  if (photograph === null) return;
  const { name, blob } = photograph;
  const models = new Set([$("model").value, $("other").value].filter(Boolean));
  const query = new URLSearchParams([...models].map((model) => ["model", model]));
  setStatus($("status"), `detecting in ${name} …`);
  try {
    const found = await fetchJson(`api/detect?${query}`, { method: "POST", body: blob });
    const picture = make("img", { src: found.picture });
    await picture.decode();
    answer = { ...found, name, picture };
  } catch (error) {
    answer = null;
    setStatus($("status"), `${name}: ${error.message}`, true);
    show();
    return;
  }
  setStatus($("status"), `${name}: ${answer.width} x ${answer.height} pixels`);
  show();
});

const findModel = (modelName) => about.models.find(({ name }) => name === modelName);
const aboveThreshold = (result) =>
  result.detections.filter(({ score }) => score >= threshold.value);

function show() {
  $("save").disabled = answer === null;
  if (answer === null) {
    $("figures").replaceChildren(make("p", { className: "empty", textContent: "Nothing to show." }));
    return;
  }
  const shown = { boxes: $("show-boxes").checked, masks: $("show-masks").checked,
    tags: $("show-tags").checked };
  const figures = $("figures");
  const modelNames = answer.results.map(({ model }) => model).join("\n");
  if (figures.dataset.models !== modelNames || figures.querySelector(".empty")) {
    figures.dataset.models = modelNames;
    figures.replaceChildren(...answer.results.map(newFigure));
  }
  for (const [index, result] of answer.results.entries()) {
    fillFigure(figures.children[index], result, shown);
  }
}

function newFigure() {
  const canvas = make("canvas");
  canvas.setAttribute("role", "img");
  const table = make("table", {}, make("tbody"));
  const details = make("details", {}, make("summary", { textContent: "List" }), table);
  return make("figure", {}, canvas, make("figcaption"), details);
}

function fillFigure(figure, result, shown) {
  const detections = aboveThreshold(result);
  const canvas = figure.querySelector("canvas");
  const { classes, colours } = findModel(result.model);
  // With one class, names say nothing.
  const all = { ...shown, names: classes.length > 1 };
  drawDetections(canvas, answer.picture, detections, all, colours, about.person_skeleton);
  const counts = `${detections.length} of ${result.detections.length} detections`;
  const caption = `${result.model}: ${counts}, ${result.seconds.toFixed(2)} s`;
  figure.querySelector("figcaption").textContent = caption;
  canvas.setAttribute("aria-label", `${answer.name}, ${caption}`);
  const rows = detections.slice(0, MAX_LISTED).map(({ name, score, box }) => {
    const cells = [name, score.toFixed(3), box.map((value) => value.toFixed(1)).join(", ")];
    return make("tr", {}, ...cells.map((text) => make("td", { textContent: text })));
  });
  figure.querySelector("tbody").replaceChildren(...rows);
}

function handleSaves() {
  const stem = () => answer.name.replace(/\.[^.]*$/, "") || "picture";
  $("save-json").addEventListener("click", () => {
    const shown = answer.results.map((each) => (
      { model: each.model, detections: aboveThreshold(each) }));
    saveText(`${stem()}.json`, asJson(answer, shown));
  });
  $("save-coco").addEventListener("click", () => {
    for (const each of answer.results) {
      const shown = { classes: findModel(each.model).classes, detections: aboveThreshold(each) };
      saveText(`${fileName(each.model)}.coco.json`, asCoco(answer, shown));
    }
  });
  $("save-picture").addEventListener("click", () => {
    const canvases = document.querySelectorAll("#figures canvas");
    for (const [index, each] of answer.results.entries()) {
      saveImage(`${fileName(each.model)}.png`, canvases[index]);
    }
  });
  function fileName(model) {
    return `${stem()}.${model.replace(/[^\w.-]/g, "_")}`;
  }
}
