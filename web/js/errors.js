// What can go wrong, each with one sentence: what was found, what was expected, what to do.
// Where the runtime checks the same thing, the sentence is the runtime's.

const MAX_MESSAGE = 1000;

export class OceanError extends Error {
  constructor(message) {
    const line = printable(message.slice(0, MAX_MESSAGE));
    super(message.length > MAX_MESSAGE ? `${line}...` : line);
    this.name = "OceanError";
  }
}

// Without what a terminal would take for a command: what is quoted may be a stranger's.
export function printable(text) {
  return text.replace(/[\p{C}\p{Zl}\p{Zp}]/gu, (c) => `\\x${c.codePointAt(0).toString(16).padStart(2, "0")}`);
}

// A text in quotes, as Python's repr() writes it.
export function quoted(text) {
  const quote = text.includes("'") && !text.includes('"') ? '"' : "'";
  const short = { "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", [quote]: `\\${quote}` };
  const body = Array.from(text, (c) => {
    if (c in short) return short[c];
    if (!/[\p{C}\p{Z}]/u.test(c) || c === " ") return c;
    const code = c.codePointAt(0);
    const [mark, digits] = code < 0x100 ? ["x", 2] : code < 0x10000 ? ["u", 4] : ["U", 8];
    return `\\${mark}${code.toString(16).padStart(digits, "0")}`;
  });
  return quote + body.join("") + quote;
}

export function shapeText(shape) {
  return `[${shape.map((axis) => axis ?? "?").join(", ")}]`;
}

export function either(choices) {
  return `${choices.slice(0, -1).join(", ")} or ${choices.at(-1)}`;
}

export function grouped(number) {
  return number.toLocaleString("en-US");
}
