// What a file says of itself, as terms and descriptions.

import { shapeText } from "./errors.js";

export function about(model) {
  const facts = [
    ["takes", { tokens: "a token a step", features: "an observation a step", raw: "its inputs a step" }[model.kind]],
    ["size", `${model.bytes.toLocaleString("en-US")} bytes, ${model.precision}`],
    ["sizes", pairs(model.sizes) || "unknown"],
    ["inputs", model.inputs.map(tensor).join("; ")],
    ["outputs", model.outputs.map(tensor).join("; ")],
    ["state", model.states.map((s) => `${s.input} → ${s.output}, ${s.dtype} ${shapeText(s.shape)}`).join("; ")],
    ["state id", model.state_id],
    ["tokens", model.tokenizer && `${model.tokenizer.tokens.length.toLocaleString("en-US")} (${model.tokenizer.kind})`],
    ["rate", model.rate_hz && `${model.rate_hz} Hz`],
    ["longest time constant", model.max_time_constant > 1 && `${plain(model.max_time_constant)} steps`],
    ["episodes end at", [model.time && `gaps of ${model.time}`, model.episode && `changes of ${model.episode}`].filter(Boolean).join(", ")],
    ["made from", pairs(model.provenance)],
    ["measured at export", pairs(model.parity)],
  ];
  return facts
    .filter(([, value]) => value)
    .flatMap(([term, value]) => [element("dt", term), element("dd", value)]);
}

export function element(name, text = "") {
  const made = document.createElement(name);
  made.textContent = text;
  return made;
}

function tensor({ name, dtype, shape, meaning, elements }) {
  const names = elements.map((e) => (e.unit ? `${e.name} [${e.unit}]` : e.name)).join(", ");
  return `${name}, ${dtype} ${shapeText(shape)}${meaning ? `, ${meaning}` : ""}${names ? `: ${names}` : ""}`;
}

function pairs(values) {
  return Object.entries(values)
    .map(([name, value]) => `${name.replaceAll("_", " ")} ${plain(value)}`)
    .join(", ");
}

function plain(value) {
  if (Array.isArray(value)) return value.map(plain).join(", ");
  if (value !== null && typeof value === "object") return `(${pairs(value)})`;
  return typeof value === "number" && !Number.isInteger(value) ? String(Number(value.toPrecision(3))) : String(value);
}
