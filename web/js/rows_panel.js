// Rows of sensors: what was predicted against what was measured, in units, and how far apart they are.

import { element } from "./about.js";
import { Chart, short } from "./charts.js";

const PLOTTED = 2_000; // rows

export class RowsPanel {
  constructor({ client, byId, say, attempt }) {
    Object.assign(this, { client, byId, say, attempt });
    this.chart = new Chart(byId("prediction"), { x: "row", y: "", series: this.series("") });
    byId("quantity").onchange = () => this.plot(true);
    byId("stop-rows").onclick = () => client.stop();
  }

  // model: null where the loaded one takes no rows.
  open(model) {
    this.byId("rows-panel").hidden = !model;
    this.model = model;
    if (!model) return;
    const output = model.outputs[0];
    this.classes = output.name === "logits" && model.outputs.length === 1;
    this.predicts = Boolean(output.predicts);
    const count = Number.isInteger(output.shape.at(-1)) ? output.shape.at(-1) : 1;
    const unnamed = Array.from({ length: count }, (_, i) => ({ name: `${output.name}[${i}]`, unit: "" }));
    this.quantities = output.elements.length ? output.elements : unnamed;
    const inputs = model.inputs.find((t) => t.constant === null).elements.map(label).join(", ");
    this.byId("rows-hint").textContent =
      `The table's first line names its columns; this model reads ${inputs}. ` +
      (this.classes
        ? "The plot shows the probability of each class at each row."
        : this.predicts
          ? "A prediction is drawn at the row that it was made for, one step before it came."
          : "An estimate is drawn at its own row; the truth where the table has a column of that name.");
    this.byId("quantity").replaceChildren(
      ...this.quantities.map((q, i) => Object.assign(element("option", this.classes ? `p(${q.name})` : label(q)), { value: i })),
    );
    this.begin();
  }

  begin() {
    this.records = [];
    this.sums = this.quantities.map(() => ({ n: 0, model: 0, last: 0 }));
    this.byId("errors").replaceChildren();
    this.plot(true);
  }

  async take(bytes, name) {
    const buttons = ["reset", "save", "restore", "open", "demo", "open-rows"].map(this.byId);
    for (const button of buttons) button.disabled = true;
    this.byId("stop-rows").disabled = false;
    this.begin();
    await this.attempt(async () => {
      const told = await this.client.call("rows", { bytes, name });
      const parts = [`${name}: ${plural(told.rows, "row")}, ${plural(told.steps, "step")}`];
      if (told.episodes) parts.push(`the state began anew ${told.episodes === 1 ? "once" : `${told.episodes} times`}`);
      if (told.outside) parts.push(`${plural(told.outside, "row")} outside the training data's range`);
      if (!told.clock) parts.push(`it has no column of the clock, ${this.model.time}, so gaps in time ended no episode`);
      this.say(`${parts.join("; ")}.`);
    });
    for (const button of buttons) button.disabled = false;
    this.byId("stop-rows").disabled = true;
  }

  show({ records }) {
    for (const { row, truth, predicted, last } of records) {
      this.records.push({ row, truth, predicted });
      this.sums.forEach((sum, i) => {
        const error = predicted ? predicted[i] - truth[i] : NaN;
        const before = last[i] - truth[i];
        if (Number.isNaN(error) || (this.predicts && Number.isNaN(before))) return;
        sum.n += 1;
        sum.model += error ** 2;
        sum.last += before ** 2;
      });
    }
    if (this.records.length > PLOTTED) this.records.splice(0, this.records.length - PLOTTED);
    this.plot();
    this.table();
  }

  plot(anew = false) {
    const k = Number(this.byId("quantity").value);
    const column = (of) => this.records.map((r) => (r[of] && !Number.isNaN(r[of][k]) ? r[of][k] : null));
    const rows = this.records.map((r) => r.row);
    const data = this.classes ? [rows, column("predicted")] : [rows, column("truth"), column("predicted")];
    this.chart.show(data, anew ? { y: this.quantities[k]?.unit ?? "", series: this.series(k) } : {});
  }

  series(k) {
    const predicted = { label: this.predicts ? "predicted" : "estimated", colour: "--guess", width: 1.5 };
    if (this.classes) return [{ ...predicted, label: `p(${this.quantities[k]?.name})` }];
    return [{ label: "measured", colour: "--truth", width: 1.5 }, predicted];
  }

  table() {
    const heading = ["quantity", "unit", "rows", "root mean square error", ...(this.predicts ? ["error of the last value"] : [])];
    const lines = this.quantities.flatMap((q, i) => {
      const { n, model, last } = this.sums[i];
      if (!n) return [];
      const found = [short(Math.sqrt(model / n)), ...(this.predicts ? [short(Math.sqrt(last / n))] : [])];
      return [line(q.name, [q.unit || "–", n.toLocaleString("en-US"), ...found])];
    });
    if (!lines.length) return;
    const first = element("tr");
    first.append(...heading.map((text) => Object.assign(element("th", text), { scope: "col" })));
    this.byId("errors").replaceChildren(first, ...lines);
  }
}

function line(name, cells) {
  const made = element("tr");
  made.append(Object.assign(element("th", name), { scope: "row" }), ...cells.map((text) => element("td", text)));
  return made;
}

function label({ name, unit }) {
  return unit ? `${name} [${unit}]` : name;
}

function plural(count, word) {
  return `${count.toLocaleString("en-US")} ${word}${count === 1 ? "" : "s"}`;
}
