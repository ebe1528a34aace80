// Text: what is typed, each token's surprise, what comes next, and the second stream.

import { element } from "./about.js";
import { Chart, short } from "./charts.js";

const SHOWN = 2_000; // tokens in the transcript
const PLOTTED = 1_000; // tokens in the plots
const FULL = 6; // nats of the strongest colour
const MEAN = 50; // tokens that the running mean is of
const EXAMPLE = "ROMEO:\nBut, soft! what light through yonder window breaks?\nIt is the east, and Juliet is the sun.\n";

export class TextPanel {
  constructor({ client, byId, say, attempt }) {
    Object.assign(this, { client, byId, say, attempt });
    this.transcript = byId("transcript");
    this.held = element("span");
    this.held.className = "held";
    this.surprise = new Chart(byId("surprise"), {
      x: "step",
      y: "nats",
      series: [
        { label: "surprise", colour: "--guess", width: 1 },
        { label: `mean of ${MEAN}`, colour: "--truth", width: 2 },
      ],
    });
    this.distance = new Chart(byId("distance"), {
      x: "steps after the change",
      y: "distance",
      log: true,
      series: [{ label: "distance", colour: "--guess", width: 2 }],
    });
    this.listen();
  }

  // model: null where the loaded one takes no text.
  open(model) {
    for (const id of ["text-panel", "compare-panel"]) this.byId(id).hidden = !model;
    if (model) this.begin({ guesses: [], held: "" });
  }

  take() {
    this.say("this model reads text; a table is for a model of sensors", true);
  }

  begin(now) {
    this.records = [];
    this.apart = [];
    this.removed = 0; // tokens that the transcript no longer shows
    this.chosen = null;
    this.transcript.replaceChildren(this.held);
    this.byId("selected").textContent = "";
    this.byId("apart").textContent = "";
    this.byId("distance").hidden = true;
    this.surprise.show([[], [], []]);
    this.expect(now);
  }

  show(event) {
    const atEnd = this.transcript.scrollHeight - this.transcript.scrollTop - this.transcript.clientHeight < 40;
    for (const record of event.records) this.add(record);
    while (this.transcript.childElementCount - 1 > SHOWN) {
      this.transcript.firstElementChild.remove();
      this.removed += 1;
    }
    if (atEnd) this.transcript.scrollTop = this.transcript.scrollHeight;
    this.plot();
    this.expect(event);
  }

  add(record) {
    const span = element("span", record.text);
    span.classList.toggle("line", record.text === "\n");
    span.classList.toggle("written", Boolean(record.written));
    if (record.nats !== null) span.style.setProperty("--share", Math.min(1, record.nats / FULL).toFixed(3));
    Object.assign(span, { record });
    this.held.before(span);
    this.records.push({ step: record.step, nats: record.nats });
    if (this.records.length > PLOTTED) this.records.shift();
    if (record.apart !== null) this.apart.push(record.apart);
  }

  plot() {
    const steps = this.records.map((r) => r.step);
    const nats = this.records.map((r) => r.nats);
    const mean = nats.map((_, i) => {
      const part = nats.slice(Math.max(0, i - MEAN + 1), i + 1).filter((n) => n !== null);
      return part.length ? part.reduce((sum, n) => sum + n, 0) / part.length : null;
    });
    this.surprise.show([steps, nats, mean]);
    if (this.apart.length) {
      // A distance of zero has no place on a logarithmic scale.
      this.distance.show([this.apart.map((_, i) => i), this.apart.map((d) => (d > 0 ? d : null))]);
      this.tellApart();
    }
  }

  expect({ guesses, held }) {
    this.held.textContent = held;
    this.byId("guesses").replaceChildren(
      ...guesses.map(([text, share]) => {
        const item = element("li");
        const bar = element("span");
        bar.className = "bar";
        bar.style.setProperty("--share", share);
        const percent = element("span", `${(100 * share).toFixed(1)}%`);
        percent.className = "share";
        item.append(element("span", visible(text)), bar, percent);
        return item;
      }),
    );
    if (!guesses.length) this.byId("guesses").replaceChildren(element("li", "nothing yet"));
  }

  select(span) {
    if (!span?.record) return;
    this.chosen?.classList.remove("selected");
    this.chosen = span;
    span.classList.add("selected");
    span.scrollIntoView({ block: "nearest" });
    const index = [...this.transcript.children].indexOf(span) + this.removed + 1;
    const { text, nats } = span.record;
    this.byId("selected").textContent = `token ${index}, ${visible(text)}: ${nats === null ? "nothing was expected yet" : `${nats.toFixed(2)} nats`}`;
    this.byId("index").value = index;
  }

  tellApart() {
    const last = this.apart.at(-1);
    const gone = this.apart.findIndex((d) => d < 0.01 * this.apart[0]);
    const under = gone < 0 ? "more than 1% of the first distance is left" : `1% of the first distance is left after ${gone} steps`;
    this.byId("apart").textContent = `now ${short(last)}; ${under}`;
  }

  // Disables what would begin a second job beside the first.
  async busy(job) {
    const buttons = ["write", "example", "compare", "reset", "save", "restore", "open", "demo"].map(this.byId);
    for (const button of buttons) button.disabled = true;
    this.byId("stop").disabled = false;
    await this.attempt(job);
    for (const button of buttons) button.disabled = false;
    this.byId("stop").disabled = true;
  }

  listen() {
    const { byId, client } = this;
    const typed = byId("typed");
    const read = (text) => this.attempt(() => client.call("read", { text }));
    const sendTyped = () => {
      const text = typed.value;
      typed.value = "";
      if (text) read(text);
    };
    typed.addEventListener("input", (event) => event.isComposing || sendTyped());
    typed.addEventListener("compositionend", sendTyped);

    byId("example").onclick = () => this.busy(() => client.call("read", { text: EXAMPLE }));
    byId("write").onclick = () =>
      this.busy(() => {
        const topK = byId("top-k").value;
        return client.call("write", {
          count: within(byId("count"), 1),
          temperature: within(byId("temperature"), 0),
          topK: topK === "" ? null : within(byId("top-k"), 1),
          seed: within(byId("seed"), 0),
        });
      });
    byId("stop").onclick = () => client.stop();
    addEventListener("keydown", (event) => event.key === "Escape" && client.stop());

    this.transcript.addEventListener("click", (event) => this.select(event.target.closest("span")));
    this.transcript.addEventListener("keydown", (event) => {
      const spans = this.transcript.children;
      const last = spans[spans.length - 2];
      const from = this.chosen?.isConnected ? this.chosen : null;
      const next = { ArrowLeft: from?.previousElementSibling ?? last, ArrowRight: from?.nextElementSibling ?? last, Home: spans[0], End: last };
      if (!(event.key in next)) return;
      event.preventDefault();
      this.select(next[event.key]);
    });

    byId("compare").onclick = () =>
      this.busy(async () => {
        const index = within(byId("index"), 1) - 1;
        const { distances, from, to } = await client.call("compare", { index, text: byId("replacement").value });
        this.apart = distances;
        byId("distance").hidden = false;
        this.plot();
        this.say(`The second stream read ${visible(to)} in place of ${visible(from)} as token ${index + 1}.`);
      });
  }
}

// The number in a field; raises Error, told, where it is none or too small.
function within(field, least) {
  const value = Number(field.value);
  if (field.value.trim() === "" || !Number.isFinite(value) || value < least || (field.step !== "0.1" && !Number.isInteger(value))) {
    const name = field.closest("label").textContent.trim();
    throw Object.assign(new Error(`${name} is ${field.value || "empty"}; give a number of ${least} or more`), { told: true });
  }
  return value;
}

function visible(text) {
  return { " ": "space", "\n": "⏎", "\t": "tab" }[text] ?? text;
}
