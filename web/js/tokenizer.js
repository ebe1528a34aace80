// Text to token ids and back: one character a token, or one word. As ocean_runtime/tokenizer.py.

import { OceanError, quoted } from "./errors.js";

const UNKNOWN = 0;
const SPACE = "[\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000]";
const LETTER = "[\\p{L}\\p{N}_]";
const MARK = `(?:(?!${LETTER}|${SPACE}).)`;
const WORD = new RegExp(` ?${LETTER}{1,40}|'${LETTER}{1,40}| ?${MARK}|${SPACE}`, "gsu");

export class Tokenizer {
  constructor({ kind, tokens }) {
    const wrong = (what) => new OceanError(`the contract can't be read (${what}); export the model again`);
    if (!Array.isArray(tokens)) throw wrong("the tokenizer has no list of tokens");
    if (!["char", "word"].includes(kind)) throw wrong(`unknown tokenizer ${quoted(String(kind))}; choose char or word`);
    if (!tokens.every((token) => typeof token === "string")) throw wrong("a tokenizer's tokens must be strings");
    if (tokens.length < 2 || tokens[UNKNOWN] !== "\ufffd") {
      throw wrong("a tokenizer needs U+FFFD, the unknown token, first and at least one token more");
    }
    this.kind = kind;
    this.tokens = tokens;
    this.ids = new Map(tokens.map((token, id) => [token, id]));
    if (this.ids.size !== tokens.length) {
      const twice = tokens.find((token, id) => tokens.indexOf(token) !== id);
      throw wrong(`the token ${quoted(twice)} is listed twice in the tokenizer`);
    }
    this.held = "";
  }

  encode(text) {
    const pieces = this.kind === "char" ? Array.from(text) : text.match(WORD) ?? [];
    return pieces.map((piece) => this.ids.get(piece) ?? UNKNOWN);
  }

  // The ids that are certain once `text` has been read; a word that may go on is held back.
  feed(text) {
    if (this.kind === "char") return this.encode(text);
    const whole = this.held + text;
    const last = [...whole.matchAll(WORD)].at(-1)?.index ?? 0;
    this.held = whole.slice(last);
    return this.encode(whole.slice(0, last));
  }

  // The ids of what is held back: the text has ended.
  flush() {
    const held = this.held;
    this.held = "";
    return this.encode(held);
  }
}
