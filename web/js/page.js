// The page: what is pressed and dropped, and what is shown. The model itself runs in a worker.

import { about } from "./about.js";
import { Client } from "./client.js";
import { RowsPanel } from "./rows_panel.js";
import { Strip } from "./strip.js";
import { TextPanel } from "./text_panel.js";

const byId = (id) => document.getElementById(id);
const strip = new Strip(byId("strip"), byId("low"), byId("high"), document.querySelector(".scale.ocean"));
const client = new Client(show);
const page = { client, byId, say, attempt };
const panels = { text: new TextPanel(page), rows: new RowsPanel(page) };
let model = null;

function say(sentence, wrong = false) {
  byId("status").textContent = sentence;
  byId("status").classList.toggle("error", wrong);
}

// Runs `job`; what goes wrong is said on the page. A defect of the page itself goes to the console too.
async function attempt(job) {
  try {
    return await job();
  } catch (error) {
    say(error.message, true);
    if (!error.told) console.error(error);
    return undefined;
  }
}

function show(event) {
  for (const record of event.records) if (record.ocean) strip.add(record.ocean);
  byId("steps").textContent = event.steps.toLocaleString("en-US");
  panels[model.feeds].show(event);
}

function load(bytes, name) {
  say(`${name} is being loaded.`);
  return attempt(async () => {
    model = await client.call("load", { bytes, name });
    byId("model-name").textContent = name;
    byId("about").replaceChildren(...about(model));
    byId("ocean-panel").hidden = !model.feeds;
    for (const [kind, panel] of Object.entries(panels)) panel.open(model.feeds === kind ? model : null);
    for (const button of document.querySelectorAll(".with-model")) button.disabled = !model.feeds;
    strip.clear();
    byId("steps").textContent = "0";
    if (model.feeds) say(`${name} is loaded.`);
    else say(`${name} takes neither text nor one input of named columns, so this page can't feed it; use ocean-run.`, true);
  });
}

const demo = () =>
  attempt(async () => {
    const answer = await fetch("demo.onnx");
    if (!answer.ok) throw new Error(`the demo model can't be fetched: ${answer.status} ${answer.statusText}`);
    await load(new Uint8Array(await answer.arrayBuffer()), "demo.onnx");
  });

async function take(file) {
  const bytes = new Uint8Array(await file.arrayBuffer());
  if (file.name.endsWith(".onnx")) return load(bytes, file.name);
  if (/\.safetensors(\.\d+)?$/.test(file.name)) return restore(bytes, file.name);
  if (/\.(csv|tsv|txt)$/.test(file.name)) {
    if (model?.feeds) return panels[model.feeds].take(bytes, file.name);
    return say("no model is loaded that takes a table; open one first", true);
  }
  return say(`${file.name} is no file that this page takes: .onnx, .safetensors or .csv`, true);
}

function restore(bytes, name) {
  return attempt(async () => {
    const now = await client.call("restore", { bytes, name });
    begin(now);
    say(`Going on from step ${now.steps.toLocaleString("en-US")} in ${name}.`);
  });
}

// Another state than before: what was shown is of the past.
function begin(now) {
  strip.clear();
  byId("steps").textContent = now.steps.toLocaleString("en-US");
  panels[model.feeds].begin(now);
}

byId("reset").onclick = () =>
  attempt(async () => {
    begin(await client.call("reset"));
    say("The state is the initial one.");
  });

byId("save").onclick = () =>
  attempt(async () => {
    const name = "state.safetensors";
    const { bytes, steps } = await client.call("save", { name });
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([bytes], { type: "application/octet-stream" }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
    say(`Saved step ${steps.toLocaleString("en-US")} to ${name}; ocean-run --state takes it too.`);
  });

for (const [button, input] of [
  ["open", "model-file"],
  ["restore", "state-file"],
  ["open-rows", "rows-file"],
]) {
  byId(button).onclick = () => byId(input).click();
  byId(input).onchange = async () => {
    const [file] = byId(input).files;
    byId(input).value = ""; // so that the same file can be chosen again
    if (file) await attempt(() => take(file));
  };
}

byId("demo").onclick = demo;
addEventListener("dragover", (event) => event.preventDefault());
addEventListener("drop", (event) => {
  event.preventDefault();
  const [file] = event.dataTransfer.files;
  if (file) attempt(() => take(file));
});

demo();
