// Making and finding elements, and writing numbers the same way everywhere.

export const byId = (id) => document.getElementById(id);

/** An element with properties (dataset and aria-… too) and children; strings become text, never markup. */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-")) made.setAttribute(name, value);
    else made[name] = value;
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** Draws a part of the page anew, if what it shows has changed. What has the focus stays while ``what`` is there is the same. */
export function redraw(target, shown, children, what = shown) {
  const [key, kinds] = [JSON.stringify(shown), JSON.stringify(what)];
  if (target.dataset.shown === key || (target.dataset.kinds === kinds && target.contains(document.activeElement))) return;
  target.dataset.shown = key;
  target.dataset.kinds = kinds;
  target.replaceChildren(...children());
}

export const percent = (ratio, digits) =>
  ratio === null || ratio === undefined ? "–" : `${(100 * ratio).toFixed(digits ?? (Math.abs(ratio) < 0.0995 ? 1 : 0))} %`;
export const number = (value) => (typeof value === "number" ? String(Number(value.toPrecision(3))) : (value ?? "–"));
export const grouped = (value, digits = 0) => value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
export const milliseconds = (value) => `${value < 10 ? value.toFixed(1) : grouped(value)} ms`;
export const duration = (seconds) =>
  seconds === null || seconds === undefined ? "–" : seconds < 1 ? `${Math.round(1000 * seconds)} ms` : `${grouped(seconds, 2)} s`;
export const clockTime = (seconds) => new Date(1000 * seconds).toLocaleTimeString("en-GB");
export const left = (seconds) => (seconds < 90 ? `${Math.ceil(seconds)} s` : `${Math.round(seconds / 60)} min`);
export const targetText = (target) => ("rank" in target ? `rank ${target.rank}` : "node" in target ? target.node : "the whole run");
export const phaseText = (phase) => ({ data_wait: "data wait", allreduce: "all-reduce", h2d: "host to device" })[phase] ?? phase;
export const capital = (text) => text[0].toUpperCase() + text.slice(1);

/** A colour of the style sheet as a canvas takes it. */
export function colour(name) {
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}
const probe = element("i", { hidden: true });
document.body.append(probe);

/** Fits a canvas to its place, sharp on any screen; returns its context, width and height in CSS pixels. */
export function surface(canvas, height) {
  const width = canvas.parentElement.clientWidth;
  const ratio = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}

/** Hatching, for what is waiting. */
export function hatching(context) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 8;
  const brush = tile.getContext("2d");
  brush.fillStyle = colour("waiting");
  brush.fillRect(0, 0, 8, 8);
  brush.strokeStyle = colour("allreduce");
  brush.lineWidth = 1.4;
  brush.beginPath();
  for (const shift of [-8, 0, 8]) {
    brush.moveTo(shift, 8);
    brush.lineTo(shift + 8, 0);
  }
  brush.stroke();
  return context.createPattern(tile, "repeat");
}

export const font = (context, size, weight = "") => {
  context.font = `${weight} ${size * parseFloat(getComputedStyle(document.documentElement).fontSize)}px system-ui, sans-serif`;
};
