// Text through a stream: read it, write more, and run a second stream beside it with one token changed.

import { OceanError } from "./errors.js";
import { logSoftmax, sample } from "./sampling.js";
import { Stream, distance } from "./stream.js";

const KEPT = 20_000; // tokens that can be gone back to
const GUESSES = 6;

export class Text {
  constructor(model) {
    this.model = model;
    this.tokenizer = model.contract.tokenizer;
    this.stream = new Stream(model);
    this.begin();
  }

  // From here on tokens are remembered, so that one of them can be changed.
  begin() {
    this.first = this.stream.copy();
    this.tokens = [];
    this.other = null;
  }

  reset() {
    this.stream.reset();
    this.tokenizer.held = "";
    this.begin();
    return this.now();
  }

  // What the page shows of this instant.
  now() {
    return {
      steps: this.stream.steps,
      held: this.tokenizer.held,
      prediction: this.stream.prediction,
      guesses: this.guesses(),
    };
  }

  // The most likely next tokens: [text, probability].
  guesses() {
    const { prediction } = this.stream;
    if (!prediction) return [];
    const logs = logSoftmax(prediction);
    const order = [...logs.keys()].sort((a, b) => logs[b] - logs[a]).slice(0, GUESSES);
    return order.map((id) => [this.tokenizer.tokens[id], Math.exp(logs[id])]);
  }

  async step(token) {
    const { prediction } = this.stream;
    const nats = prediction ? -logSoftmax(prediction)[token] : null;
    await this.stream.stepToken(token);
    if (this.tokens.length === KEPT) this.begin();
    else this.tokens.push(token);
    let apart = null;
    if (this.other) {
      await this.other.stepToken(token);
      apart = distance(this.stream.ocean, this.other.ocean);
    }
    return { text: this.tokenizer.tokens[token], nats, step: this.stream.steps, ocean: this.stream.ocean, apart };
  }

  async read(text, go) {
    for (const token of this.tokenizer.feed(text)) await go(await this.step(token));
    return this.now();
  }

  async write({ count, temperature, topK, seed }, go) {
    for (const token of this.tokenizer.flush()) await go(await this.step(token));
    if (!this.model.contract.outputs.some((t) => t.predicts)) {
      throw new OceanError("this model has no output that predicts the next token, so it can't write");
    }
    if (!this.stream.prediction) await go(await this.step(this.tokenizer.encode("\n")[0]));
    for (let i = 0; i < count; i++) {
      const token = sample(this.stream.prediction, { step: this.stream.steps, seed, temperature, topK });
      if (!(await go({ ...(await this.step(token)), written: true }))) break;
    }
    return this.now();
  }

  // A second stream: the same tokens from the same beginning, but for the one at `index`, which is that of `text`.
  // It goes on beside the first. Gives the distance of both states at each step from the change on.
  async compare({ index, text }, go) {
    if (!(index >= 0 && index < this.tokens.length)) {
      throw new OceanError(
        `there is no token ${index + 1} to change; ${this.tokens.length} were read since the start or a restored state`,
      );
    }
    const [token, more] = this.tokenizer.encode(text);
    if (token === undefined || more !== undefined) {
      throw new OceanError(`give one ${this.tokenizer.kind === "char" ? "character" : "word"} in place of the old one`);
    }
    if (token === this.tokens[index]) {
      throw new OceanError("this is the token that was read, or one that the model does not know either; give another");
    }
    const one = this.first.copy();
    const other = this.first.copy();
    const distances = [];
    this.other = null;
    for (const [i, read] of this.tokens.entries()) {
      await one.stepToken(read);
      await other.stepToken(i === index ? token : read);
      if (i >= index) distances.push(distance(one.ocean, other.ocean));
      if (i % 50 === 49) await new Promise((resolve) => setTimeout(resolve));
    }
    this.other = other;
    return { distances, from: this.tokenizer.tokens[this.tokens[index]], to: this.tokenizer.tokens[token] };
  }

  // What is read but not stepped goes with the state, as the runtime keeps it.
  save(name) {
    const { held } = this.tokenizer;
    if (held) this.stream.context.set("text", new Map([["bytes", ""], ["word", held]]));
    else this.stream.context.delete("text");
    return this.stream.save(name);
  }

  restore(bytes, name) {
    const restored = this.stream.copy();
    restored.restore(bytes, name);
    const unread = restored.context.get("text");
    const word = unread?.get?.("word");
    if (unread !== undefined && (typeof word !== "string" || typeof unread.get("bytes") !== "string")) {
      throw new OceanError(
        "the snapshot does not hold the text that was read and not stepped; restore an older one, or start anew",
      );
    }
    if (unread?.get("bytes")) {
      throw new OceanError(
        "the snapshot was saved in the middle of a character's bytes, which this page can't go on from; go on with ocean-run",
      );
    }
    this.stream = restored;
    this.tokenizer.held = this.tokenizer.kind === "word" ? (word ?? "") : "";
    this.begin();
    return this.now();
  }

  // Steps a second of a copy of the stream, which reads each token in turn.
  async measure(steps) {
    const copy = this.stream.copy();
    for (let i = 0; i < 20; i++) await copy.stepToken(1);
    const start = performance.now();
    for (let i = 0; i < steps; i++) await copy.stepToken(1 + (i % (this.tokenizer.tokens.length - 1)));
    return (1000 * steps) / (performance.now() - start);
  }
}
