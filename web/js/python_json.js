// JSON as Python's json module reads and writes it.
//
// A snapshot's checksum covers the JSON text that Python makes of its header, so numbers must keep their own
// spelling: 3 and 3.0 are two things there, and one in JavaScript. Objects are read as Map, numbers as PyNumber.

const MAX_DEPTH = 100;

export class PyNumber {
  constructor(literal) {
    this.literal = literal;
  }

  get value() {
    return { NaN: NaN, Infinity: Infinity, "-Infinity": -Infinity }[this.literal] ?? Number(this.literal);
  }
}

export const int = (value) => new PyNumber(String(value));

// A float as Python's repr() writes it.
export function float(value) {
  if (Number.isNaN(value)) return new PyNumber("NaN");
  if (!Number.isFinite(value)) return new PyNumber(value > 0 ? "Infinity" : "-Infinity");
  if (Object.is(value, -0)) return new PyNumber("-0.0");
  const size = Math.abs(value);
  if (size && (size < 1e-4 || size >= 1e16)) {
    const [digits, power] = value.toExponential().split("e");
    return new PyNumber(`${digits}e${power[0]}${power.slice(1).padStart(2, "0")}`);
  }
  const text = String(value);
  if (!text.includes("e")) return new PyNumber(text.includes(".") ? text : `${text}.0`);
  return new PyNumber(value.toFixed(20).replace(/0+$/, ""));
}

// Raises SyntaxError where the text is no JSON.
export function parse(text) {
  let at = 0;
  const token =
    /[ \t\n\r]*(?:([[\]{},:])|(true|false|null|-?Infinity|NaN)|(-?(?:0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?)|("(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*"))/y;
  const end = /[ \t\n\r]*$/y;

  function next() {
    token.lastIndex = at;
    const match = token.exec(text);
    if (!match) throw new SyntaxError(`no JSON at character ${at}`);
    at = token.lastIndex;
    return match;
  }

  function value(match, depth) {
    if (depth > MAX_DEPTH) throw new SyntaxError(`more than ${MAX_DEPTH} lists and objects within each other`);
    const [, sign, word, number, fraction, power, string] = match;
    if (string !== undefined) return JSON.parse(string);
    if (number !== undefined) return fraction || power ? float(Number(number)) : int(number === "-0" ? 0 : number);
    if (word !== undefined) return word in { true: 1, false: 1, null: 1 } ? JSON.parse(word) : new PyNumber(word);
    if (sign === "[") return items([], "]", depth, (list, first) => list.push(value(first, depth + 1)));
    if (sign === "{") {
      return items(new Map(), "}", depth, (map, first) => {
        if (first[6] === undefined || next()[1] !== ":") throw new SyntaxError(`no key at character ${at}`);
        map.set(JSON.parse(first[6]), value(next(), depth + 1));
      });
    }
    throw new SyntaxError(`no value at character ${at}`);
  }

  function items(into, close, depth, add) {
    let match = next();
    if (match[1] === close) return into;
    for (;;) {
      add(into, match);
      match = next();
      if (match[1] === close) return into;
      if (match[1] !== ",") throw new SyntaxError(`no comma at character ${at}`);
      match = next();
    }
  }

  const result = value(next(), 0);
  end.lastIndex = at;
  if (!end.test(text)) throw new SyntaxError(`more than one value, at character ${at}`);
  return result;
}

// As json.dumps(value, sort_keys=sorted).
export function dump(value, sorted = false) {
  if (value instanceof PyNumber) return value.literal;
  if (typeof value === "string") return text(value);
  if (value === null || typeof value === "boolean") return String(value);
  if (Array.isArray(value)) return `[${value.map((item) => dump(item, sorted)).join(", ")}]`;
  const entries = [...value];
  if (sorted) entries.sort(([a], [b]) => byCodePoint(a, b));
  return `{${entries.map(([key, item]) => `${text(key)}: ${dump(item, sorted)}`).join(", ")}}`;
}

export function byCodePoint(a, b) {
  const [left, right] = [Array.from(a), Array.from(b)];
  for (let i = 0; i < Math.min(left.length, right.length); i++) {
    const difference = left[i].codePointAt(0) - right[i].codePointAt(0);
    if (difference) return difference;
  }
  return left.length - right.length;
}

function text(value) {
  const short = { '"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f" };
  return `"${value.replace(/["\\]|[^ -~]/g, (c) => short[c] ?? `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`)}"`;
}
