// The ocean as a strip: one row a channel, one column a step. Blue is negative, orange positive.

const PIXELS_A_STEP = 3;
const STILL_MS = 500; // between two redraws for who prefers less motion
const ENDS = { low: [33, 102, 172], high: [217, 95, 2] };
const MIDDLE = { light: [247, 247, 247], dark: [27, 34, 40] };

export const dark = matchMedia("(prefers-color-scheme: dark)");
export const still = matchMedia("(prefers-reduced-motion: reduce)");

export class Strip {
  constructor(canvas, low, high, bar) {
    Object.assign(this, { canvas, low, high, bar });
    this.columns = [];
    this.limit = 0;
    this.seen = 0;
    new ResizeObserver(() => this.plan()).observe(canvas);
    dark.addEventListener("change", () => this.plan());
  }

  clear() {
    this.columns = [];
    this.limit = 0;
    this.seen = 0;
    this.plan();
  }

  add(ocean) {
    this.columns.push(ocean);
    // The strongest colour stands for what the largest channel has on average: one outlier doesn't pale the rest.
    let largest = 0;
    for (const value of ocean) largest = Math.max(largest, Math.abs(value));
    this.seen += 1;
    this.limit += (largest - this.limit) / this.seen;
    if (this.columns.length > 4096) this.columns.splice(0, 2048);
    this.plan();
  }

  // Draw at the next frame; twice a second where less motion is preferred.
  plan() {
    if (this.planned) return;
    this.planned = true;
    const draw = () => {
      this.planned = false;
      this.draw();
    };
    if (still.matches) setTimeout(draw, STILL_MS);
    else requestAnimationFrame(draw);
  }

  draw() {
    const { canvas, columns } = this;
    const width = Math.max(1, Math.floor(canvas.clientWidth / PIXELS_A_STEP));
    const height = columns.at(-1)?.length ?? 1;
    // Scrolling is motion: without it the strip fills from the left, and begins anew when it is full.
    const from = still.matches ? Math.floor(Math.max(0, columns.length - 1) / width) * width : columns.length - width;
    canvas.width = width;
    canvas.height = height;
    const context = canvas.getContext("2d");
    const image = context.createImageData(width, height);
    const limit = roundedUp(this.limit);
    for (let x = 0; x < width; x++) {
      const column = columns[from + x];
      if (!column) continue;
      for (let y = 0; y < height; y++) image.data.set(colour(column[y] / limit), 4 * (y * width + x));
    }
    context.putImageData(image, 0, 0);
    this.low.textContent = columns.length ? `−${limit} or less` : "";
    this.high.textContent = columns.length ? `${limit} or more` : "";
    const shade = (share) => `rgb(${colour(share).slice(0, 3).join(" ")})`;
    this.bar.style.background = `linear-gradient(to right, ${[-1, -0.5, 0, 0.5, 1].map(shade).join(", ")})`;
  }
}

function colour(share) {
  const middle = dark.matches ? MIDDLE.dark : MIDDLE.light;
  const end = share < 0 ? ENDS.low : ENDS.high;
  const part = Math.sqrt(Math.min(1, Math.abs(share))); // so that small values show too
  return [...end.map((value, i) => Math.round(middle[i] + (value - middle[i]) * part)), 255];
}

function roundedUp(value) {
  if (!value) return 1;
  const unit = 10 ** (Math.floor(Math.log10(value)) - 1);
  return Number((Math.ceil(value / unit) * unit).toPrecision(2));
}
