// A model and its streams: one continuous state each, which every step reads and replaces.

import * as ort from "../vendor/onnxruntime-web/ort.wasm.bundle.min.mjs";
import { ARRAYS, BATCH, count, filled, readContract, sized } from "./contract.js";
import { OceanError, quoted, shapeText } from "./errors.js";
import { MAX_FILE_BYTES, contractText } from "./onnx.js";
import { checkSnapshot, fromBytes, toBytes } from "./snapshot.js";

// One thread: more would need headers that a plain file server doesn't send, and a step is too small for them.
ort.env.wasm.numThreads = 1;
ort.env.logLevel = "fatal";

export class Model {
  // bytes: of an .onnx file, a Uint8Array. Raises OceanError where the file can't be run.
  static async load(bytes, name) {
    let text;
    try {
      if (bytes.length > MAX_FILE_BYTES) throw new OceanError("has over 1 GiB, more than this page reads");
      text = contractText(bytes);
    } catch (error) {
      throw error instanceof OceanError ? new OceanError(`${name} ${error.message}`) : error;
    }
    try {
      const model = new Model();
      model.contract = readContract(text);
      model.session = await openSession(bytes);
      model.checkGraph();
      await model.warmUp();
      return model;
    } catch (error) {
      throw error instanceof OceanError ? new OceanError(`${name}: ${error.message}`) : error;
    }
  }

  // Inputs by name -> outputs by name, both plain arrays in C order. Nothing is checked.
  async run(feed) {
    const { inputs, states } = this.contract;
    const tensors = {};
    for (const t of inputs) tensors[t.name] = tensorOf(t, feed[t.name] ?? filled(t, t.constant));
    for (const s of states) tensors[s.input] = tensorOf(s, feed[s.input]);
    const results = await this.session.run(tensors);
    return Object.fromEntries(Object.entries(results).map(([name, { data, dims }]) => [name, { array: data, dims }]));
  }

  release() {
    return this.session.release();
  }

  checkGraph() {
    const { inputs, outputs, states } = this.contract;
    for (const [side, declared, nodes] of [
      ["input", [...inputs, ...states.map((s) => ({ ...s, name: s.input }))], this.session.inputMetadata],
      ["output", [...outputs, ...states.map((s) => ({ ...s, name: s.output }))], this.session.outputMetadata],
    ]) {
      const graph = new Map(nodes.map((node) => [node.name, node]));
      const names = new Set(declared.map((t) => t.name));
      for (const name of [...new Set([...graph.keys(), ...names])].sort()) {
        if (graph.has(name) && names.has(name)) continue;
        const [holder, lacker] = names.has(name) ? ["contract", "graph"] : ["graph", "contract"];
        throw new OceanError(`the ${holder} has an ${side} ${quoted(name)} that the ${lacker} lacks; export the model again`);
      }
      for (const { name, dtype, shape } of declared) {
        const { type, shape: found } = graph.get(name);
        if (type !== dtype) {
          throw new OceanError(
            `the contract gives ${side} ${quoted(name)} the dtype ${dtype}, the graph ${type}; export the model again`,
          );
        }
        if (!fits(shape, found)) {
          throw new OceanError(
            `the contract gives ${side} ${quoted(name)} the shape ${shapeText(shape)}, the graph ${shapeText(found)}; export the model again`,
          );
        }
      }
    }
  }

  async warmUp() {
    const { outputs, states } = this.contract;
    let results;
    try {
      results = await this.run(Object.fromEntries(states.map((s) => [s.input, filled(s, s.initial)])));
    } catch (error) {
      throw new OceanError(`the graph can't run one step (${firstLine(error)}); export the model again`);
    }
    for (const { name, shape } of [...outputs, ...states.map((s) => ({ ...s, name: s.output }))]) {
      const { dims } = results[name];
      if (shapeText(dims) !== shapeText(sized(shape))) {
        throw new OceanError(
          `the graph gives ${quoted(name)} with shape ${shapeText(dims)} for one stream, the contract says ${shapeText(shape)}; export the model again`,
        );
      }
    }
  }
}

export class Stream {
  constructor(model) {
    this.model = model;
    this.reset();
  }

  reset() {
    this.steps = 0;
    this.states = new Map(this.model.contract.states.map((s) => [s.input, filled(s, s.initial)]));
    this.predictions = new Map();
    this.context = new Map();
  }

  copy() {
    const copied = Object.assign(Object.create(Stream.prototype), this);
    for (const name of ["states", "predictions", "context"]) copied[name] = new Map(this[name]);
    return copied; // arrays are replaced by each step, never changed
  }

  // The first state pair's present value as plain numbers.
  get ocean() {
    return Float32Array.from(this.states.get(this.model.contract.states[0].input), Number);
  }

  // The last output that predicts the next input; null before the first step.
  get prediction() {
    return this.predictions.values().next().value ?? null;
  }

  // One step: inputs by name -> outputs by name. Raises OceanError; nothing has changed then.
  async step(feed) {
    const { outputs, states, kind } = this.model.contract;
    let results;
    try {
      results = await this.model.run({ ...feed, ...Object.fromEntries(this.states) });
    } catch (error) {
      throw new OceanError(`the graph can't take this step: ${firstLine(error)}`);
    }
    const checked = outputs.filter((t) => kind !== "raw" || t.predicts).concat(states.map((s) => ({ ...s, name: s.output })));
    for (const { name, dtype } of checked) {
      if (dtype.startsWith("float") && !results[name].array.every(Number.isFinite)) {
        throw new OceanError(
          `step ${this.steps + 1} gave a ${quoted(name)} that is not finite; the state is as it was before the step, so reset the stream or restore a snapshot`,
        );
      }
    }
    this.steps += 1;
    this.states = new Map(states.map((s) => [s.input, results[s.output].array]));
    this.predictions = new Map(outputs.filter((t) => t.predicts).map((t) => [t.name, results[t.name].array]));
    return Object.fromEntries(outputs.map((t) => [t.name, results[t.name].array]));
  }

  stepToken(token) {
    const input = this.model.contract.inputs.find((t) => t.constant === null);
    return this.step({ [input.name]: filled(input, token) });
  }

  save(name) {
    const { contract } = this.model;
    const described = (tensors, arrays, key) =>
      new Map(
        tensors
          .filter((t) => arrays.has(t[key]))
          .map((t) => [t[key], { dtype: t.dtype, sizes: sized(t.shape), array: arrays.get(t[key]) }]),
      );
    return toBytes(
      {
        stateId: contract.state_id,
        kind: contract.kind,
        steps: this.steps,
        precision: contract.precision,
        states: described(contract.states, this.states, "input"),
        predictions: described(contract.outputs, this.predictions, "name"),
        context: this.context,
      },
      name,
    );
  }

  // Go on from a snapshot's bytes. Raises OceanError where it is damaged or of another model; nothing has changed then.
  restore(bytes, name) {
    let saved;
    try {
      saved = fromBytes(bytes);
    } catch (error) {
      throw error instanceof OceanError ? new OceanError(`${name} ${error.message}`) : error;
    }
    checkSnapshot(saved, this.model.contract);
    this.steps = saved.steps;
    this.states = new Map([...saved.states].map(([key, { array }]) => [key, array]));
    this.predictions = new Map([...saved.predictions].map(([key, { array }]) => [key, array]));
    this.context = saved.context;
  }
}

// ‖a − b‖ / ‖a‖; 0 where both are all zeros.
export function distance(a, b) {
  let apart = 0;
  let size = 0;
  for (let i = 0; i < a.length; i++) {
    apart += (a[i] - b[i]) ** 2;
    size += a[i] ** 2;
  }
  return apart === 0 ? 0 : Math.sqrt(apart / (size || apart));
}

async function openSession(bytes) {
  try {
    return await ort.InferenceSession.create(bytes, { executionProviders: ["wasm"], logSeverityLevel: 4 });
  } catch (error) {
    throw new OceanError(`it can't be loaded by onnxruntime-web ${ort.env.versions.web}: ${firstLine(error)}`);
  }
}

function tensorOf({ dtype, shape }, array) {
  return new ort.Tensor(dtype, array, sized(shape));
}

// A fixed size must be the graph's own, where the graph has one; the batch axis must be dynamic.
function fits(declared, graph) {
  return (
    declared.length === graph.length &&
    declared.every((axis, i) => typeof graph[i] !== "number" || (axis !== BATCH && graph[i] === axis))
  );
}

function firstLine(error) {
  return String(error?.message ?? error).split("\n")[0];
}

export { ARRAYS, count };
