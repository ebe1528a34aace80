// A state as a file: the same safetensors file that ocean_runtime/snapshot.py writes and reads.

import { sha256 } from "../vendor/noble-hashes/sha2.js";
import { bytesToHex } from "../vendor/noble-hashes/utils.js";
import { ARRAYS, count, sized } from "./contract.js";
import { OceanError, grouped, quoted, shapeText } from "./errors.js";
import { byCodePoint, dump, float, int, parse, PyNumber } from "./python_json.js";

const FORMAT = 1;
const MAX_FILE_BYTES = 1 << 28;
const MAX_HEADER_BYTES = 1 << 20;
const KEY = "ocean_snapshot";
const VERSION = "0.1.0 (web page)";
const DTYPES = {
  F32: "float32",
  F64: "float64",
  I64: "int64",
  I32: "int32",
  U8: "uint8",
  BOOL: "bool",
};
const NAMES = Object.fromEntries(Object.entries(DTYPES).map(([short, name]) => [name, short]));

// {stateId, kind, steps, states, predictions, precision, context} -> Uint8Array.
// `states` and `predictions` are of [name, {dtype, sizes, array}]; context is a Map as python_json.js reads it.
export function toBytes(saved, name) {
  const tensors = [
    ...[...saved.states].map(([key, tensor]) => [`state.${key}`, tensor]),
    ...[...saved.predictions].map(([key, tensor]) => [`prediction.${key}`, tensor]),
  ];
  const size = tensors.reduce((sum, [, tensor]) => sum + tensor.array.byteLength, 0);
  if (size + MAX_HEADER_BYTES > MAX_FILE_BYTES) {
    throw new OceanError(
      `the state has ${grouped(size)} bytes, and a snapshot holds at most ${grouped(MAX_FILE_BYTES - MAX_HEADER_BYTES)}`,
    );
  }
  const about = new Map([
    ["format", int(FORMAT)],
    ["state_id", saved.stateId],
    ["kind", saved.kind],
    ["steps", int(saved.steps)],
    ["batch", null],
    ["saved_at", float(Date.now() / 1000)],
    ["monotonic", float(0)],
    ["precision", saved.precision],
    ["runtime", VERSION],
    ["file", name],
    ["context", saved.context],
  ]);
  about.set("checksum", checksum(about, tensors));
  const header = { __metadata__: { [KEY]: dump(about) } };
  let at = 0;
  for (const [key, { dtype, sizes, array }] of tensors) {
    header[key] = { dtype: NAMES[dtype], shape: sizes, data_offsets: [at, (at += array.byteLength)] };
  }
  const plain = new TextEncoder().encode(JSON.stringify(header));
  const length = Math.ceil(plain.length / 8) * 8;
  if (length > MAX_HEADER_BYTES) {
    throw new OceanError(`the snapshot's names and context have over ${grouped(MAX_HEADER_BYTES)} bytes`);
  }
  const content = new Uint8Array(8 + length + at).fill(0x20, 8, 8 + length);
  new DataView(content.buffer).setBigUint64(0, BigInt(length), true);
  content.set(plain, 8);
  let offset = 8 + length;
  for (const [, { array }] of tensors) {
    content.set(bytesOf(array), offset);
    offset += array.byteLength;
  }
  return content;
}

// What `toBytes` or the runtime made. Raises OceanError, its message a predicate: "is damaged: ...".
export function fromBytes(content) {
  if (content.length > MAX_FILE_BYTES) {
    throw new OceanError(`has ${grouped(content.length)} bytes; a snapshot has at most ${grouped(MAX_FILE_BYTES)}`);
  }
  let header, about, format;
  const damaged = new OceanError("is no snapshot, or a damaged one; restore an older one, or start anew");
  try {
    const length = Number(new DataView(content.buffer, content.byteOffset, 8).getBigUint64(0, true));
    if (length > Math.min(MAX_HEADER_BYTES, content.length - 8)) throw damaged;
    const text = new TextDecoder("utf-8", { fatal: true }).decode(content.subarray(8, 8 + length));
    header = { data: content.subarray(8 + length), tensors: JSON.parse(text) };
    about = parse(header.tensors.__metadata__[KEY]);
    format = about.get("format").value;
  } catch {
    throw damaged;
  }
  if (format > FORMAT) {
    throw new OceanError(`has snapshot format ${format}, newer than this runtime; pip install -U oceanstate`);
  }
  try {
    const tensors = readTensors(header);
    const expected = about.get("checksum");
    if (typeof expected !== "string" || checksum(about, tensors) !== expected) {
      throw new OceanError("is damaged: its checksum does not match; restore an older one, or start anew");
    }
    const batch = about.get("batch");
    const named = (prefix) =>
      new Map(tensors.filter(([k]) => k.startsWith(prefix)).map(([k, t]) => [k.slice(prefix.length), t]));
    const context = about.get("context") ?? new Map();
    if (!(context instanceof Map)) throw damaged;
    return {
      stateId: about.get("state_id"),
      kind: about.get("kind"),
      steps: about.get("steps").value,
      batch: batch === null ? null : batch.value,
      states: named("state."),
      predictions: named("prediction."),
      precision: about.get("precision") ?? "",
      context,
    };
  } catch (error) {
    throw error instanceof OceanError ? error : damaged;
  }
}

// Raises OceanError where a snapshot does not fit the model that is to go on from it.
export function checkSnapshot(saved, contract) {
  if (saved.stateId !== contract.state_id) {
    throw new OceanError(
      `the snapshot is of the model ${String(saved.stateId).slice(0, 19)}, and this one is ` +
        `${contract.state_id.slice(0, 19)}: a state means nothing to another model; load the model it was saved with, or start anew`,
    );
  }
  if (saved.batch !== null) {
    throw new OceanError(`the snapshot has batch ${saved.batch}, the stream None; open the stream with that batch`);
  }
  if (!Number.isSafeInteger(saved.steps) || saved.steps < 0) {
    throw new OceanError(`the snapshot counts ${saved.steps} steps, which can't be`);
  }
  const states = new Map(contract.states.map((s) => [s.input, s]));
  const predictions = new Map(contract.outputs.filter((t) => t.predicts).map((t) => [t.name, t]));
  const sameStates = saved.states.size === states.size && [...saved.states.keys()].every((key) => states.has(key));
  if (!sameStates || ![...saved.predictions.keys()].every((key) => predictions.has(key))) {
    throw new OceanError(
      `the snapshot holds ${list(saved.states)} and ${list(saved.predictions)}, ` +
        `the model has ${list(states)} and ${list(predictions)}`,
    );
  }
  for (const [kept, expected, isPrediction] of [
    [saved.states, states, false],
    [saved.predictions, predictions, true],
  ]) {
    for (const [name, { dtype, sizes, array }] of kept) {
      const { dtype: wanted, shape } = expected.get(name);
      if (dtype !== wanted || shapeText(sizes) !== shapeText(sized(shape))) {
        throw new OceanError(
          `the snapshot's ${quoted(name)} is ${dtype} ${shapeText(sizes)}, the model's ${wanted} ${shapeText(sized(shape))}`,
        );
      }
      const wrong = isPrediction ? (n) => Math.abs(n) === Infinity : (n) => !Number.isFinite(n);
      if (dtype.startsWith("float") && array.some(wrong)) {
        throw new OceanError(`the snapshot's ${quoted(name)} is not finite; restore an older one, or start anew`);
      }
    }
  }
}

function list(map) {
  return `[${[...map.keys()].sort(byCodePoint).map(quoted).join(", ")}]`;
}

// As the safetensors library: the tensors lie one after the other and fill the rest of the file.
function readTensors({ data, tensors }) {
  const entries = Object.entries(tensors).filter(([name]) => name !== "__metadata__");
  entries.sort(([, a], [, b]) => a.data_offsets[0] - b.data_offsets[0] || a.data_offsets[1] - b.data_offsets[1]);
  let at = 0;
  const read = entries.map(([name, { dtype, shape, data_offsets: [start, end] }]) => {
    const kind = Object.hasOwn(DTYPES, dtype) ? DTYPES[dtype] : null;
    if (!kind || !shape.every((n) => Number.isSafeInteger(n) && n >= 0)) throw new SyntaxError(name);
    const bytes = count(shape) * ARRAYS[kind].BYTES_PER_ELEMENT;
    if (start !== at || end - start !== bytes || end > data.length) throw new SyntaxError(name);
    at = end;
    return [name, { dtype: kind, sizes: shape, array: new ARRAYS[kind](data.slice(start, end).buffer) }];
  });
  if (at !== data.length) throw new SyntaxError("bytes that belong to no tensor");
  return read;
}

function checksum(about, tensors) {
  const covered = new Map([...about].filter(([key]) => key !== "checksum"));
  const utf8 = new TextEncoder();
  const hash = sha256.create();
  hash.update(utf8.encode(dump(covered, true)));
  for (const [name, { dtype, sizes, array }] of [...tensors].sort(([a], [b]) => byCodePoint(a, b))) {
    hash.update(utf8.encode(dump([name, dtype, sizes.map((n) => new PyNumber(String(n)))])));
    hash.update(bytesOf(array));
  }
  return bytesToHex(hash.digest());
}

function bytesOf(array) {
  return new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
}
