// Line plots, by uPlot. Colours come from the style sheet, so that they follow light and dark.

import uPlot from "uplot";
import { dark } from "./strip.js";

const HEIGHT = 220;

export class Chart {
  // series: of {label, colour (a custom property of the style sheet), width, dash}; x is labelled `x`, y `y`.
  constructor(place, { x, y, series, log = false }) {
    Object.assign(this, { place, options: { x, y, series, log }, data: [[], ...series.map(() => [])] });
    new ResizeObserver(() => this.resize()).observe(place);
    dark.addEventListener("change", () => this.rebuild());
  }

  show(data, options = {}) {
    this.data = data;
    if (Object.keys(options).length || !this.plot) {
      Object.assign(this.options, options);
      this.rebuild();
      return;
    }
    if (this.planned) return;
    this.planned = requestAnimationFrame(() => {
      this.planned = 0;
      this.plot.setData(this.data);
    });
  }

  resize() {
    const width = this.place.clientWidth;
    if (this.plot && width) this.plot.setSize({ width, height: HEIGHT });
    else if (width) this.rebuild();
  }

  rebuild() {
    this.plot?.destroy();
    this.plot = null;
    const width = this.place.clientWidth;
    if (!width) return;
    const style = getComputedStyle(document.documentElement);
    const css = (name) => style.getPropertyValue(name).trim();
    const { x, y, series, log } = this.options;
    const axis = { stroke: css("--soft"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line") } };
    this.plot = new uPlot(
      {
        width,
        height: HEIGHT,
        cursor: { drag: { x: false, y: false } },
        scales: { x: { time: false }, y: { distr: log ? 3 : 1 } },
        axes: [
          { ...axis, label: x, labelSize: 20, size: 34 },
          { ...axis, label: y, labelSize: 20, size: 56, ...(log && { splits: decades }), values: (_, ticks) => ticks.map((v) => (v === null ? "" : short(v))) },
        ],
        series: [
          { label: x },
          ...series.map(({ label, colour, width: line = 1.5, dash }) => ({
            label,
            stroke: css(colour),
            width: line,
            dash,
            points: { show: false },
            value: (_, v) => (v === null || v === undefined ? "–" : short(v)),
          })),
        ],
      },
      this.data,
      this.place,
    );
  }
}

// The powers of ten within a range, at most eight of them.
function decades(_, axis, low, high) {
  const [first, last] = [Math.ceil(Math.log10(low)), Math.floor(Math.log10(high))];
  const step = Math.max(1, Math.ceil((last - first) / 8));
  return Array.from({ length: Math.floor((last - first) / step) + 1 }, (_, i) => 10 ** (first + i * step));
}

// A number with four digits.
export function short(value) {
  const size = Math.abs(value);
  if (size && (size < 1e-3 || size >= 1e7)) return value.toExponential(size >= 1e7 ? 4 : 0);
  return String(Number(value.toPrecision(size >= 1000 ? 7 : 4)));
}
