// Reads what an ONNX file says of itself, before onnxruntime sees it: its seal, its form, its metadata.
//
// A protobuf message is a sequence of fields: a key (number and wire type) and a value. Nothing is copied, and
// all reading counts against one budget. Unlike the runtime's scan this one doesn't look into the graph: which
// operators a file uses is not checked here. onnxruntime then runs within the browser's sandbox, in a worker.

import { sha256 } from "../vendor/noble-hashes/sha2.js";
import { bytesToHex } from "../vendor/noble-hashes/utils.js";
import { OceanError } from "./errors.js";

export const METADATA_KEY = "ocean_state";
export const MAX_FILE_BYTES = 2 ** 30;
const MAX_FIELDS = 250_000;
const MAX_NAME_BYTES = 1_000;
const MAX_JSON_BYTES = 8 << 20;
const SEAL_KEY = "ocean_sha256";
const UNSEALED = "0".repeat(64);
const FIXED = { 1: 8, 5: 4 };

class WireError extends Error {}

class Reader {
  constructor(data) {
    this.data = data;
    this.budget = MAX_FIELDS;
  }

  // The fields of the message from `at` to `end`, in order: number, wire type, and where its bytes lie.
  *fields(at, end) {
    while (at < end) {
      if (--this.budget < 0) throw new WireError("it has more fields than a step graph needs");
      let key, length;
      [key, at] = this.varint(at, end);
      const number = key >> 3n;
      const wire = Number(key & 7n);
      if (number <= 0n || number >= 1n << 29n) throw new WireError(`field number ${number} is impossible`);
      if (wire === 0) {
        [, at] = this.varint(at, end);
        yield { number: Number(number), wire, start: at, end: at };
        continue;
      }
      if (wire === 2) [length, at] = this.varint(at, end);
      else if (wire in FIXED) length = BigInt(FIXED[wire]);
      else throw new WireError(`wire type ${wire} is unknown`);
      if (length > BigInt(end - at)) {
        throw new WireError("it ends within a field, so it is cut off or damaged");
      }
      yield { number: Number(number), wire, start: at, end: at + Number(length) };
      at += Number(length);
    }
  }

  text(field, limit) {
    if (field.wire !== 2) throw new WireError(`field ${field.number} has wire type ${field.wire}`);
    const size = field.end - field.start;
    if (size > limit) throw new WireError(`a text has ${size.toLocaleString("en-US")} bytes, more than ${limit.toLocaleString("en-US")}`);
    try {
      return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(this.data.subarray(field.start, field.end));
    } catch {
      throw new WireError("a text is not UTF-8");
    }
  }

  varint(at, end) {
    let value = 0n;
    for (let i = 0; i < Math.min(10, end - at); i++) {
      const byte = this.data[at + i];
      value |= BigInt(byte & 127) << BigInt(7 * i);
      if (byte < 128) return [BigInt.asUintN(64, value), at + i + 1];
    }
    throw new WireError("a number doesn't end, so the file is cut off or damaged");
  }
}

// The contract's JSON text; raises OceanError where the file is damaged or holds none.
export function contractText(data) {
  checkSeal(data);
  const reader = new Reader(data);
  const contracts = [];
  let graphs = 0;
  try {
    for (const field of reader.fields(0, data.length)) {
      if (field.number === 7) {
        graphs += 1;
        for (const _ of reader.fields(field.start, field.end)); // its form alone
      }
      if (field.number === 14) contracts.push(...entry(reader, field, METADATA_KEY));
    }
    if (!graphs) throw new WireError("it holds no graph");
  } catch (error) {
    if (!(error instanceof WireError)) throw error;
    throw new OceanError(`is no ONNX file, or is damaged (${error.message})`);
  }
  if (contracts.length > 1) throw new OceanError("holds two contracts; export the model again");
  if (!contracts.length) {
    throw new OceanError("holds no Ocean State contract; make the file with ocean-export from a checkpoint");
  }
  return contracts[0];
}

// The values of a metadata entry where its key is `key`.
function entry(reader, field, key) {
  const parts = [...reader.fields(field.start, field.end)];
  const name = parts.filter((part) => part.number === 1).map((part) => reader.text(part, MAX_NAME_BYTES));
  if ((name[0] ?? "") !== key) return [];
  return parts.filter((part) => part.number === 2).map((part) => reader.text(part, MAX_JSON_BYTES));
}

// A file that was sealed at export must be what it was: its digest is that of the file with zeros in its place.
function checkSeal(data) {
  const mark = new TextEncoder().encode(`\n${String.fromCharCode(SEAL_KEY.length)}${SEAL_KEY}\x12\x40`);
  const at = lastIndexOf(data, mark) + mark.length;
  if (at < mark.length) return;
  const found = new TextDecoder("latin1").decode(data.subarray(at, at + UNSEALED.length));
  const hash = sha256.create();
  hash.update(data.subarray(0, at));
  hash.update(new TextEncoder().encode(UNSEALED));
  hash.update(data.subarray(at + UNSEALED.length));
  if (bytesToHex(hash.digest()) !== found) {
    throw new OceanError(
      "is damaged, or was changed after it was exported, as its content does not match the SHA-256 in it; " +
        "copy it again, or export it again",
    );
  }
}

function lastIndexOf(data, mark) {
  for (let at = data.lastIndexOf(mark[0]); at >= 0; at = at ? data.lastIndexOf(mark[0], at - 1) : -1) {
    if (mark.every((byte, i) => data[at + i] === byte)) return at;
  }
  return -1;
}
