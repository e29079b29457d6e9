// The straggler calculator's page.

import uPlot from "/console/vendor/uplot.js";
import { gpusAxis, percentAxis } from "./axes.js";
import { Calculator } from "./calculator.js";
import { byId, colour, element, font, grouped, hatching, milliseconds, percent, redraw, surface } from "./dom.js";
import { beginTheme } from "./theme.js";

const FIELDS = [
  { name: "gpus", label: "GPUs", kind: "range", min: 8, max: 16384, factors: true, powers: true },
  { name: "load_ms", label: "Load, ms", kind: "range", min: 0, max: 500 },
  { name: "compute_ms", label: "Compute, ms", kind: "range", min: 10, max: 2000, factors: true },
  { name: "allreduce_ms", label: "All-reduce, ms", kind: "range", min: 0, max: 1000 },
  { name: "slow_gpus", label: "Slow GPUs", kind: "range", min: 0, max: 16 },
  { name: "slow_speed", label: "Their speed, %", kind: "range", min: 20, max: 100 },
  { name: "variability", label: "Variability of all, %", kind: "range", min: 0, max: 20, step: 0.5 },
  { name: "seed", label: "Draw number", kind: "number", min: 0, step: 1, kept: true },
  { name: "price", label: "Price of a GPU-hour", kind: "number", min: 0, kept: true },
  { name: "currency", label: "Currency", kind: "text", kept: true },
];
const PARTS = ["load", "compute", "waiting", "allreduce"];
const BARS_HEIGHT = 330;

function draw(shown) {
  drawNumbers(shown);
  drawShares(shown.answer);
  drawBars(shown);
  drawSizes(shown);
}

function drawNumbers({ question, answer }) {
  const { price, currency } = question;
  const rows = [
    ["Efficiency", percent(answer.efficiency, 3), percent(answer.efficiency_expected, 2)],
    ["Step", milliseconds(1000 * answer.step_seconds), milliseconds(1000 * answer.step_seconds_expected)],
    ["Step if all were healthy and alike", milliseconds(1000 * answer.ideal_step_seconds), ""],
    [`Lost GPU-hours a day, of ${grouped(answer.gpu_hours_per_day)}`, grouped(answer.lost_gpu_hours_per_day), grouped(answer.lost_gpu_hours_per_day_expected)],
    ["Lost GPU-hours in 30 days", grouped(answer.lost_gpu_hours_per_30_days), grouped(answer.lost_gpu_hours_per_30_days_expected)],
  ];
  if (price) rows.push([`Lost ${currency || "money"} in 30 days`, grouped(price * answer.lost_gpu_hours_per_30_days), grouped(price * answer.lost_gpu_hours_per_30_days_expected)]);
  redraw(byId("numbers"), rows, () => rows.map(([label, one, many]) =>
    element("tr", {}, element("th", { scope: "row" }, label), element("td", { className: "right" }, element("b", {}, one)), element("td", { className: "right" }, many))));
}

function drawShares(answer) {
  byId("displayed").textContent = percent(answer.displayed_utilization, 1);
  byId("useful").textContent = percent(answer.useful_compute_share, 1);
  byId("displayed-bar").value = answer.displayed_utilization;
  byId("useful-bar").value = answer.useful_compute_share;
}

function drawBars({ question, answer, bars }) {
  const { context, width, height } = surface(byId("bars"), BARS_HEIGHT);
  const left = 98;
  const x = (seconds) => left + (seconds / answer.step_seconds) * (width - left - 8);
  const row = (height - 24) / bars.length;
  const fill = { load: colour("load"), compute: colour("compute"), waiting: hatching(context), allreduce: colour("allreduce") };
  bars.forEach((bar, index) => {
    let at = 0;
    for (const part of PARTS) {
      const length = bar[`${part}_seconds`];
      context.fillStyle = part === "compute" && bar.slow ? colour("slow") : fill[part];
      context.fillRect(x(at), index * row, x(at + length) - x(at), row > 4 ? row - 1 : row);
      at += length;
    }
  });
  font(context, 0.8);
  context.fillStyle = colour("dim");
  context.textAlign = "right";
  const names = [0, Math.floor(bars.length / 2), bars.length - 1];
  const named = (bar) => (bar.first === bar.last ? `GPU ${bar.first}` : `${bar.first}–${bar.last}`);
  for (const index of new Set(names)) context.fillText(named(bars[index]), left - 6, Math.max(12, Math.min(height - 26, (index + 0.5) * row + 4)));
  context.textAlign = "left";
  context.fillText("0", left, height - 6);
  context.textAlign = "right";
  context.fillText(milliseconds(1000 * answer.step_seconds), width - 8, height - 6);
  byId("bars-told").textContent = bars.length < question.gpus ? `Each bar is the last to arrive of ${Math.ceil(question.gpus / bars.length)} GPUs.` : "A bar per GPU.";
}

let chart = null;

function drawSizes({ question, answer, sizes }) {
  const target = byId("sizes");
  chart?.destroy();
  const at = sizes.map((size) => size.gpus);
  const first = Math.min(at[0], question.gpus);
  chart = new uPlot({
    width: target.clientWidth,
    height: 210,
    legend: { show: false },
    cursor: { drag: { x: false, y: false } },
    scales: { x: { time: false, distr: 3, log: 2, range: [first, Math.max(at.at(-1), 16)] }, y: { range: [0, 1] } },
    axes: [{ ...gpusAxis(at), label: "GPUs", labelSize: 20 }, percentAxis()],
    series: [{}, { stroke: colour("accent"), width: 2, points: { show: true, size: 6 } }],
    hooks: { draw: [(made) => {
      made.ctx.fillStyle = colour("slow");
      made.ctx.beginPath();
      made.ctx.arc(made.valToPos(question.gpus, "x", true), made.valToPos(answer.efficiency_expected, "y", true), 6 * devicePixelRatio, 0, 7);
      made.ctx.fill();
    }] },
  }, [at, sizes.map((size) => size.efficiency)], target);
}

beginTheme();
new Calculator({ path: "/straggler.json", fields: FIELDS, draw });
