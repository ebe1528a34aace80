// Runs the model apart from the page, so that the page stays responsive. One request at a time, in order.
//
// In:  {id, call, args}            Out: {id, result} or {id, error, told}; told: a sentence for the person
//      {call: "stop"}                   {event: "steps", ...} while a request is at work

import { OceanError } from "./errors.js";
import { Model } from "./stream.js";
import { Rows, observationOf } from "./rows.js";
import { Text } from "./text.js";

const EVERY_MS = 40; // between two messages to the page

let model = null;
let feeder = null; // a Text or a Rows
let stopped = false;
let waiting = Promise.resolve();

const calls = {
  async load({ bytes, name }) {
    const loaded = await Model.load(bytes, name);
    const { contract } = loaded;
    const next = contract.kind === "tokens" ? new Text(loaded) : observationOf(contract) ? new Rows(loaded) : null;
    await model?.release();
    [model, feeder] = [loaded, next];
    const { tokenizer, ...plain } = contract;
    return {
      ...plain,
      tokenizer: tokenizer && { kind: tokenizer.kind, tokens: tokenizer.tokens },
      bytes: bytes.length,
      feeds: feeder instanceof Text ? "text" : feeder instanceof Rows ? "rows" : "",
    };
  },
  reset: () => feeder.reset(),
  save: ({ name }) => ({ bytes: feeder.save(name), steps: feeder.stream.steps }),
  restore: ({ bytes, name }) => feeder.restore(bytes, name),
  read: ({ text }) => work((go) => feeder.read(text, go)),
  write: (options) => work((go) => feeder.write(options, go)),
  compare: (change) => work((go) => feeder.compare(change, go)),
  rows: ({ bytes, name }) => work((go) => feeder.read(bytes, name, go)),
  measure: ({ steps }) => feeder.measure(steps),
};

// Gives `job` a function to call after each step: it passes the record on to the page in groups, lets messages
// in, and says whether to go on.
async function work(job) {
  stopped = false;
  let records = [];
  let last = performance.now();
  const tell = async () => {
    self.postMessage({ event: "steps", records, ...feeder.now() });
    records = [];
    await new Promise((resolve) => setTimeout(resolve)); // so that a "stop" is heard
    last = performance.now();
  };
  const go = async (record) => {
    records.push(record);
    if (performance.now() - last > EVERY_MS) await tell();
    return !stopped;
  };
  try {
    return await job(go);
  } finally {
    await tell();
  }
}

self.onmessage = ({ data }) => {
  const { id, call, args } = data;
  if (call === "stop") {
    stopped = true;
    return;
  }
  waiting = waiting.then(async () => {
    try {
      if (call !== "load" && !feeder) throw new OceanError("no model is loaded that this page can feed");
      self.postMessage({ id, result: await calls[call](args ?? {}) });
    } catch (error) {
      self.postMessage({ id, error: String(error?.message ?? error), told: error instanceof OceanError });
    }
  });
};
