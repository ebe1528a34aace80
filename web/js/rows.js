// Rows of sensors through a stream, by the rules of ocean_runtime/rows.py: a missing value is the last one of its
// element; an episode begins where its column changes, or the clock goes backwards or leaves a gap.

import { OceanError } from "./errors.js";
import { logSoftmax } from "./sampling.js";
import { float } from "./python_json.js";
import { Stream } from "./stream.js";
import { Table, element } from "./table.js";

const MAX_AGE_S = 1;

// The one input of named elements; null where the model takes none.
export function observationOf(contract) {
  const given = contract.inputs.filter((t) => t.constant === null);
  const vector = given.length === 1 && given[0].elements.length && given[0].shape.slice(0, -1).every((n) => n === 1 || n === "B");
  return contract.kind !== "tokens" && vector ? given[0] : null;
}

export class Rows {
  constructor(model) {
    this.model = model;
    this.input = observationOf(model.contract);
    this.output = model.contract.outputs[0];
    // Names for outputs that have none.
    const size = this.output.shape.at(-1);
    const unnamed = Array.from({ length: Number.isInteger(size) ? size : 1 }, (_, i) => ({ name: `${this.output.name}[${i}]`, unit: "", reference: 0 }));
    this.quantities = this.output.elements.length ? this.output.elements : unnamed;
    this.classes = this.output.name === "logits" && model.contract.outputs.length === 1;
    this.stream = new Stream(model);
    this.begin();
  }

  // Where the rows have come to: what the next row's fate depends on, besides the state.
  begin() {
    this.place = { held: this.input.elements.map(() => NaN), episode: null, time: null };
  }

  reset() {
    this.stream.reset();
    this.begin();
    return this.now();
  }

  now() {
    return { steps: this.stream.steps };
  }

  async read(bytes, name, go) {
    const { contract } = this.model;
    const table = new Table(bytes, name);
    const columns = this.input.elements.map((wanted) => table.find(wanted));
    const truths = this.quantities.map((q) => (this.classes ? null : this.truthOf(table, q)));
    const clock = contract.time ? table.clock(element(contract.time)) : null;
    const whose = contract.episode ? table.has(element(contract.episode).name) : null;
    const maxAge = contract.max_age_s ?? MAX_AGE_S;
    const told = { rows: 0, steps: 0, episodes: 0, outside: 0 };
    for (const [number, row] of table.rows()) {
      const found = columns.map((index) => table.value(number, row, index));
      const time = clock ? clock(number, row) : null;
      const episode = whose === null ? "" : row[whose].trim();
      const { place } = this;
      const elapsed = time !== null && place.time !== null ? time - place.time : null;
      const begins =
        (place.episode !== null && episode !== place.episode) || (elapsed !== null && (elapsed < 0 || elapsed > maxAge));
      if (begins) this.stream.reset();
      const held = begins ? found.map(() => NaN) : place.held;
      const values = found.map((value, i) => (Number.isFinite(value) ? value : held[i]));
      const steps = !(elapsed === 0 && !begins) && !values.some(Number.isNaN);
      const predicted = this.output.predicts && steps ? this.inUnits(this.stream.predictions.get(this.output.name)) : null;
      const outputs = steps ? await this.step(values) : null;
      this.place = { held: values, episode, time };
      this.keep();
      told.rows += 1;
      told.steps += Number(steps);
      told.episodes += Number(begins);
      told.outside += Number(steps && this.input.elements.some((e, i) => (e.low !== null && values[i] < e.low) || (e.high !== null && values[i] > e.high)));
      const goes = await go({
        row: number,
        truth: truths.map((index) => (index === null ? NaN : table.value(number, row, index))),
        predicted: this.output.predicts ? predicted : outputs,
        last: this.lastValues(held),
        ocean: steps ? this.stream.ocean : null,
      });
      if (!goes) break;
    }
    return { ...this.now(), ...told, clock: clock !== null || !contract.time };
  }

  // One step from values in their units: the output in its units, for classes the probability of each.
  async step(values) {
    const numbers = values.map((value, i) => value - this.input.elements[i].reference);
    const array = this.input.dtype === "float64" ? Float64Array.from(numbers) : Float32Array.from(numbers);
    if (!array.every(Number.isFinite)) throw new OceanError("a row has a value that is too large for the model");
    const outputs = await this.stream.step({ [this.input.name]: array });
    const found = outputs[this.output.name];
    return this.classes ? logSoftmax(found).map(Math.exp) : this.inUnits(found);
  }

  inUnits(array) {
    return array ? Float64Array.from(array, (value, i) => Number(value) + (this.quantities[i]?.reference ?? 0)) : null;
  }

  // What the last row says of each quantity: what a prediction has to beat.
  lastValues(held) {
    const names = new Map(this.input.elements.map((e, i) => [e.name, held[i]]));
    return this.quantities.map((q) => (this.output.predicts ? (names.get(q.name) ?? NaN) : NaN));
  }

  truthOf(table, quantity) {
    const index = table.has(quantity.name);
    return index === null ? null : table.find({ name: quantity.name, unit: quantity.unit ?? "" });
  }

  // Leave the place with the stream, for the next snapshot.
  keep() {
    const { held, episode, time } = this.place;
    const number = (value) => (value === null || Number.isNaN(value) ? null : float(value));
    this.stream.context = new Map([
      ["rows", new Map([["held", held.map(number)], ["episode", episode], ["time", number(time)]])],
    ]);
  }

  save(name) {
    return this.stream.save(name);
  }

  restore(bytes, name) {
    const restored = this.stream.copy();
    restored.restore(bytes, name);
    const kept = restored.context.get("rows");
    let place = null;
    if (kept !== undefined) {
      try {
        const held = kept.get("held").map((value) => (value === null ? NaN : value.value));
        const [episode, time] = [kept.get("episode"), kept.get("time")];
        if (held.length === this.input.elements.length && held.every((n) => typeof n === "number" && Math.abs(n) !== Infinity)) {
          place = { held, episode, time: time === null ? null : time.value };
        }
      } catch {
        place = null;
      }
      if (!place) {
        throw new OceanError(
          `the snapshot does not hold the last value of each of the ${this.input.elements.length} elements; restore an older one, or start anew`,
        );
      }
    }
    this.stream = restored;
    this.begin();
    if (place) this.place = place;
    return this.now();
  }

  async measure(steps) {
    const copy = this.stream.copy();
    const feed = { [this.input.name]: new (this.input.dtype === "float64" ? Float64Array : Float32Array)(this.input.elements.length) };
    for (let i = 0; i < 20; i++) await copy.step(feed);
    const start = performance.now();
    for (let i = 0; i < steps; i++) await copy.step(feed);
    return (1000 * steps) / (performance.now() - start);
  }
}
