// A table of text: UTF-8 CSV whose first line names the columns, each with its unit in brackets where it has one.
//
// ocean-run reads more kinds (other encodings, decimal commas, comments, units in a second line): convert those first.

import { OceanError, grouped, quoted } from "./errors.js";

const MAX_BYTES = 1 << 28;
const MISSING = new Set(["", "nan", "na", "n/a", "<na>", "null", "none", "nil", "missing", "?", "-", "--", "---", "."]);
const BOOLEANS = new Map([["true", 1], ["false", 0]]);
const SECONDS = { "": 1, s: 1, ms: 1e-3, us: 1e-6, µs: 1e-6, μs: 1e-6, ns: 1e-9 };
const NUMBER = /^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*$/;
const INFINITE = /^\s*[+-]?(inf|infinity)\s*$/i;
const ISO = /^\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?$/;

export class Table {
  constructor(bytes, name) {
    this.name = name;
    if (bytes.length > MAX_BYTES) {
      throw new OceanError(`${name} has ${grouped(bytes.length)} bytes; this page reads at most ${grouped(MAX_BYTES)}, ocean-run any`);
    }
    let text;
    try {
      text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    } catch {
      throw new OceanError(`${name} is not UTF-8 text; convert it, or use ocean-run`);
    }
    const heading = text.slice(0, text.search(/[\r\n]|$/));
    if (!heading.trim()) throw new OceanError(`${name} is empty; its first line must name the columns`);
    const separator = [",", ";", "\t", "|"].find((mark) => heading.includes(mark)) ?? ",";
    this.lines = cells(text, separator, name);
    this.columns = this.lines.next().value.map(element);
    const numbers = this.columns.filter((column) => NUMBER.test(column.name));
    if (numbers.length) {
      throw new OceanError(
        `${name} starts with numbers, such as ${quoted(numbers[0].name)}; its first line must name the columns`,
      );
    }
    const names = this.columns.map((column) => column.name);
    const twice = names.find((column, i) => column && names.indexOf(column) !== i);
    if (twice) throw new OceanError(`${name} has two columns named ${quoted(twice)}; give each its own name`);
  }

  // The index of a column; null where there is none.
  has(name) {
    const index = this.columns.findIndex((column) => column.name === name);
    return index < 0 ? null : index;
  }

  // The index of a column. Raises OceanError where there is none, or its unit is another.
  find({ name, unit }) {
    const index = this.has(name) ?? this.has(`${name}[${unit}]`);
    if (index === null) {
      const known = this.columns.map((column) => column.name).join(", ");
      throw new OceanError(`${this.name} has no column ${quoted(name)}; its columns are ${known}`);
    }
    const found = this.columns[index].unit;
    if (found && unit && found !== unit && this.columns[index].name === name) {
      throw new OceanError(`${this.name} has ${quoted(name)} in ${found}, expected in ${unit}; convert it first`);
    }
    return index;
  }

  // A function of a row's number and cells that gives its time in seconds; null where the table lacks the column.
  clock({ name, unit }) {
    const index = this.has(name);
    if (index === null) return null;
    const column = this.columns[index];
    const scale = SECONDS[column.unit || unit];
    if (scale === undefined) {
      throw new OceanError(`the time is in ${quoted(column.unit || unit)}; it may be in s, ms, us or ns`);
    }
    return (number, row) => {
      const text = row[index].trim();
      if (ISO.test(text)) {
        const iso = text.replace(" ", "T");
        return Date.parse(/(Z|[+-]\d\d:?\d\d)$/.test(iso) ? iso : `${iso}Z`) / 1000;
      }
      const now = scale * this.value(number, row, index);
      if (!Number.isFinite(now)) {
        throw new OceanError(
          `${this.name} row ${number} has no time in column ${quoted(name)}; fill it in, or leave such rows out`,
        );
      }
      return now;
    };
  }

  // Each row's number, from 1, and its cells.
  *rows() {
    let number = 0;
    for (const row of this.lines) {
      if (row.length === 1 && !row[0].trim()) continue;
      number += 1;
      if (row.length !== this.columns.length) {
        throw new OceanError(
          `${this.name} row ${number} has ${row.length} cells where the first line names ${this.columns.length} columns`,
        );
      }
      yield [number, row];
    }
  }

  // A cell's number, NaN where it is missing.
  value(number, row, index) {
    const text = row[index];
    if (NUMBER.test(text)) return Number(text);
    const small = text.trim().toLowerCase();
    if (MISSING.has(small) || INFINITE.test(text)) return NaN;
    if (BOOLEANS.has(small)) return BOOLEANS.get(small);
    throw new OceanError(
      `${this.name} row ${number} has ${quoted(text)} in column ${quoted(this.columns[index].name)}, which is not a number`,
    );
  }
}

// A column's name and unit: `speed [m/s]`, or `position[2]`, which has none.
export function element(text) {
  const match = /^\s*(.*?)\s*(?:\s\[([^[\]]*)\])?\s*$/.exec(text);
  return match && match[1] && match[2] !== undefined && !/^\d+(:\d+)?$/.test(match[2].trim())
    ? { name: match[1], unit: match[2].trim() }
    : { name: text.trim(), unit: "" };
}

// Rows of cells; one in quotes may hold the separator, line breaks and doubled quotes.
function* cells(text, separator, name) {
  let row = [];
  let at = 0;
  while (at < text.length) {
    let cell;
    if (text[at] === '"') {
      let end = at + 1;
      while (text[end] === '"' ? text[end + 1] === '"' && (end += 2) : end < text.length && (end += 1));
      if (end >= text.length) throw new OceanError(`${name} ends within a cell in quotes, so it is cut off or no CSV`);
      cell = text.slice(at + 1, end).replaceAll('""', '"');
      at = end + 1;
    } else {
      let end = at;
      while (end < text.length && text[end] !== separator && text[end] !== "\n" && text[end] !== "\r") end += 1;
      cell = text.slice(at, end);
      at = end;
    }
    row.push(cell);
    if (text[at] === separator) {
      at += 1;
      if (at === text.length) row.push("");
      else if (text[at] !== "\n" && text[at] !== "\r") continue;
      else row.push("");
    }
    if (text[at] === "\r") at += 1;
    if (text[at] === "\n") at += 1;
    yield row;
    row = [];
  }
  if (row.length) yield row;
}
