// The contract: what a model file says of itself. The checks and sentences are those of ocean_runtime/contract.py.

import { OceanError, either, grouped, quoted, shapeText } from "./errors.js";
import { Tokenizer } from "./tokenizer.js";

const VERSION = 1;
const KINDS = ["tokens", "features", "raw"];
const DTYPES = ["float32", "float16", "float64", "int64", "int32", "uint8", "bool"];
const MAX_JSON_CHARACTERS = 8 << 20;
const MAX_DEPTH = 100;
const MAX_TENSORS = 1_000;
const MAX_RANK = 8;
const MAX_ELEMENTS = 1 << 25;
export const BATCH = "B";

// An array type by dtype; this page runs no float16.
export const ARRAYS = {
  float32: Float32Array,
  float64: Float64Array,
  int64: BigInt64Array,
  int32: Int32Array,
  uint8: Uint8Array,
  bool: Uint8Array,
};

// How Python names the types of JSON values.
function typeName(value) {
  if (value === null) return "NoneType";
  if (Array.isArray(value)) return "list";
  if (typeof value === "number") return Number.isInteger(value) ? "int" : "float";
  return { string: "str", boolean: "bool", object: "dict", undefined: "NoneType" }[typeof value];
}

const REQUIRED = {
  tensor: ["dtype", "name", "shape"],
  state: ["dtype", "input", "output", "shape"],
  contract: ["inputs", "kind", "outputs", "state_id", "states"],
};

// Raises OceanError where the text is no contract that this page can honour.
export function readContract(text) {
  if (text.length > MAX_JSON_CHARACTERS) {
    throw new OceanError(
      `the contract is ${grouped(text.length)} characters long; at most ${grouped(MAX_JSON_CHARACTERS)} are read`,
    );
  }
  let found;
  try {
    found = JSON.parse(text);
  } catch (error) {
    throw new OceanError(`the contract is not valid JSON (${error.message}); export the model again`);
  }
  if (typeName(found) !== "dict") {
    throw new OceanError("the contract is not a JSON object; export the model again");
  }
  if (deeper(found, MAX_DEPTH)) {
    throw new OceanError(
      `the contract has more than ${MAX_DEPTH} lists and objects within each other; export the model again`,
    );
  }
  if (typeName(found.version) !== "int" || found.version < 1) {
    throw new OceanError("the contract has no version number; export the model again");
  }
  if (found.version > VERSION) {
    throw new OceanError(
      `the contract has version ${found.version} and this runtime reads up to ${VERSION}; ` +
        "upgrade it: pip install -U oceanstate",
    );
  }
  const tokenizer = found.tokenizer == null ? null : new Tokenizer(typed(found.tokenizer, "dict", "tokenizer"));
  for (const [name, kind] of [
    ["inputs", "tensor"],
    ["outputs", "tensor"],
    ["states", "state"],
  ]) {
    for (const item of typed(found[name], "list", name)) {
      checkFields(typed(item, "dict", name), REQUIRED[kind], `${name}: `);
    }
  }
  checkFields(found, REQUIRED.contract, "");
  const contract = {
    normalisation: null,
    rate_hz: null,
    max_age_s: null,
    max_time_constant: null,
    time: "",
    episode: "",
    sizes: {},
    precision: "fp32",
    provenance: {},
    parity: {},
    ...found,
    tokenizer,
    inputs: found.inputs.map(tensorOf),
    outputs: found.outputs.map(tensorOf),
    states: found.states.map((state) => ({ initial: 0, ...state })),
  };
  check(contract);
  return contract;
}

function tensorOf(given) {
  const elements = (given.elements ?? []).map((element) => ({
    unit: "",
    low: null,
    high: null,
    reference: 0,
    ...element,
  }));
  return { meaning: "", predicts: "", constant: null, ...given, elements };
}

const EXPECTED = {
  ...Object.fromEntries(
    "kind name dtype meaning predicts input output state_id precision time episode unit".split(" ").map((n) => [n, ["str"]]),
  ),
  opset: ["int"],
  ir_version: ["int"],
  initial: ["int", "float", "list"],
  constant: ["int", "bool", "float", "NoneType"],
  rate_hz: ["int", "float", "NoneType"],
  max_age_s: ["int", "float", "NoneType"],
  max_time_constant: ["int", "float", "NoneType"],
  reference: ["int", "float"],
  low: ["int", "float", "NoneType"],
  high: ["int", "float", "NoneType"],
  normalisation: ["dict", "NoneType"],
  sizes: ["dict"],
  provenance: ["dict"],
  parity: ["dict"],
  shape: ["list"],
  elements: ["list"],
};

function checkFields(values, required, where) {
  for (const name of required) {
    if (!(name in values)) throw new OceanError(`the contract lacks ${where}${name}; export the model again`);
  }
  for (const [name, value] of Object.entries(values)) {
    const expected = Object.hasOwn(EXPECTED, name) ? EXPECTED[name] : null;
    if (expected && !expected.includes(typeName(value))) {
      throw new OceanError(`the contract's ${where}${name} is ${typeName(value)}, not ${expected[0]}`);
    }
    if (name === "initial" && Array.isArray(value) && !value.every((n) => typeof n === "number")) {
      throw new OceanError(`the contract's ${where}initial has items that are no numbers`);
    }
    if (name === "elements") {
      for (const item of value) checkFields(typed(item, "dict", `${where}elements`), ["name"], where);
    }
  }
}

function typed(value, type, name) {
  if (typeName(value) !== type) throw new OceanError(`the contract's ${name} is ${typeName(value)}, not ${type}`);
  return value;
}

function check(contract) {
  const { kind, inputs, outputs, states, tokenizer } = contract;
  if (!KINDS.includes(kind)) {
    throw new OceanError(`the contract's kind is ${quoted(kind)}, but this runtime knows ${either(KINDS)}`);
  }
  if (!states.length) throw new OceanError("the contract names no state pair, so there is no memory to carry");
  if (!inputs.length || !outputs.length) {
    throw new OceanError("the contract needs at least one input and one output besides the state");
  }
  if (kind === "tokens" && !tokenizer) throw new OceanError("the contract's kind is tokens, but it holds no tokenizer");
  const names = [...inputs.map((t) => t.name), ...states.map((s) => s.input)];
  const namesOut = [...outputs.map((t) => t.name), ...states.map((s) => s.output)];
  if (names.length + namesOut.length > MAX_TENSORS) {
    throw new OceanError(`the contract names more than ${grouped(MAX_TENSORS)} inputs, outputs and states`);
  }
  for (const list of [names, namesOut]) {
    const twice = list.filter((name, i) => list.indexOf(name) !== i).sort()[0];
    if (twice !== undefined) throw new OceanError(`the contract names ${quoted(twice)} twice`);
  }
  const elements = [...inputs, ...outputs].flatMap((t) => t.elements.map((e) => e.name));
  const { state_id, precision, time, episode } = contract;
  for (const name of [state_id, precision, time, episode, ...names, ...namesOut, ...elements]) {
    if (/[\p{C}\p{Zl}\p{Zp}]|(?! )\p{Zs}/u.test(name)) {
      throw new OceanError(`the contract has a name that can't be printed, ${quoted(name)}`);
    }
  }
  for (const tensor of [...inputs, ...outputs]) {
    checkTensor(tensor.name, tensor.dtype, tensor.shape);
    if (tensor.elements.length && tensor.elements.length !== tensor.shape.at(-1)) {
      throw new OceanError(
        `the contract gives ${tensor.elements.length} element names for ${quoted(tensor.name)} of shape ` +
          shapeText(tensor.shape),
      );
    }
    checkValue(tensor.name, tensor.dtype, tensor.constant === null ? [] : [tensor.constant]);
    const numbers = tensor.elements.flatMap((e) => [e.reference, e.low, e.high]).filter((n) => n !== null);
    if (!numbers.every(Number.isFinite)) {
      throw new OceanError(`the contract gives ${quoted(tensor.name)} a reference or a range that is not finite`);
    }
  }
  for (const name of ["rate_hz", "max_age_s", "max_time_constant"]) {
    const given = contract[name];
    if (given !== null && !(Number.isFinite(given) && given > 0)) {
      throw new OceanError(`the contract's ${name} must be positive and finite`);
    }
  }
  for (const state of states) {
    checkTensor(state.input, state.dtype, state.shape);
    const { initial, input, shape } = state;
    if (Array.isArray(initial) && initial.length !== count(sized(shape))) {
      throw new OceanError(
        `the contract gives ${quoted(input)} ${grouped(initial.length)} initial numbers for the shape ${shapeText(shape)}`,
      );
    }
    checkValue(input, state.dtype, Array.isArray(initial) ? initial : [initial]);
  }
  const shapes = [...inputs, ...outputs, ...states].map((t) => count(sized(t.shape)));
  if (shapes.reduce((sum, size) => sum + size, 0) > MAX_ELEMENTS) {
    throw new OceanError(`the contract's tensors have more than ${grouped(MAX_ELEMENTS)} elements together`);
  }
  for (const tensor of outputs.filter((t) => t.predicts)) {
    if (kind === "tokens" && (tensor.shape.at(-1) !== tokenizer.tokens.length || !tensor.dtype.startsWith("float"))) {
      throw new OceanError(
        `the contract says that ${quoted(tensor.name)}, ${tensor.dtype} ${shapeText(tensor.shape)}, predicts one ` +
          `of ${tokenizer.tokens.length} tokens; export the model again`,
      );
    }
    if (!names.includes(tensor.predicts)) {
      throw new OceanError(
        `the contract says that ${quoted(tensor.name)} predicts ${quoted(tensor.predicts)}, which is no input`,
      );
    }
  }
}

function checkTensor(name, dtype, shape) {
  if (!DTYPES.includes(dtype)) {
    throw new OceanError(`the contract gives ${quoted(name)} the dtype ${quoted(dtype)}; choose ${either(DTYPES)}`);
  }
  for (const axis of shape) {
    if (axis !== BATCH && (!Number.isInteger(axis) || axis < 1)) {
      throw new OceanError(
        `the contract gives ${quoted(name)} the shape ${shapeText(shape)}; an axis is a positive size or 'B'`,
      );
    }
  }
  if (shape.filter((axis) => axis === BATCH).length > 1) {
    throw new OceanError(`the contract gives ${quoted(name)} two batch axes, ${shapeText(shape)}`);
  }
  if (shape.length > MAX_RANK) {
    throw new OceanError(`the contract gives ${quoted(name)} ${shape.length} axes; at most ${MAX_RANK} are read`);
  }
  if (shape.some((axis) => axis !== BATCH && axis > MAX_ELEMENTS)) {
    throw new OceanError(`the contract gives ${quoted(name)} the shape ${shapeText(shape)}, over 2^25 elements`);
  }
  if (dtype === "float16") {
    throw new OceanError(`${quoted(name)} is of float16, which this page doesn't run; run the file with ocean-run`);
  }
}

function checkValue(name, dtype, values) {
  const single = 3.4028235677973366e38; // half a step above float32's largest number, where rounding ends
  const ranges = { int64: [-(2 ** 63), 2 ** 63 - 1], int32: [-(2 ** 31), 2 ** 31 - 1], uint8: [0, 255] };
  const [low, high] = { ...ranges, float32: [-single, single] }[dtype] ?? [-Infinity, Infinity];
  const held = values.every((value) => Number.isFinite(Number(value)) && value >= low && value <= high);
  if (!held) throw new OceanError(`the contract fills ${quoted(name)} with a value that ${dtype} can't hold`);
}

function deeper(value, left) {
  if (typeof value !== "object" || value === null) return false;
  return left === 0 || Object.values(value).some((item) => deeper(item, left - 1));
}

// A contract's shape for one stream.
export function sized(shape) {
  return shape.map((axis) => (axis === BATCH ? 1 : axis));
}

export function count(sizes) {
  return sizes.reduce((product, size) => product * size, 1);
}

// A new array of a tensor's size and dtype, filled with a value or with each of a list.
export function filled({ dtype, shape }, value) {
  const array = new ARRAYS[dtype](count(sized(shape)));
  const converted = (number) => (dtype === "int64" ? BigInt(Math.trunc(number)) : Number(number));
  if (Array.isArray(value)) array.set(value.map(converted));
  else array.fill(converted(value ?? 0));
  return array;
}
