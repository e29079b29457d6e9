// The scaling planner's page.

import uPlot from "/console/vendor/uplot.js";
import { gpusAxis, percentAxis } from "./axes.js";
import { Calculator } from "./calculator.js";
import { byId, colour, duration, element, grouped, milliseconds, percent, redraw } from "./dom.js";
import { beginTheme } from "./theme.js";

const named = (names) => names.map((name) => [name, name]);
const YES_NO = [["true", "yes"], ["false", "no"]];

const fields = (options) => [
  { name: "model", label: "Model", kind: "select", options: named(options.model) },
  { name: "accelerator", label: "Accelerator", kind: "select", options: named(options.accelerator) },
  { name: "gpus", label: "GPUs", kind: "range", min: 1, max: 16384, factors: true, powers: true },
  { name: "gpus_per_node", label: "GPUs per node", kind: "number", min: 1, max: 16, step: 1 },
  { name: "topology", label: "Inside a node", kind: "select", options: [["", "as it is sold"], ["nvswitch", "NVSwitch"], ["pcie", "PCIe"]] },
  { name: "nics_per_node", label: "NICs per node (one per GPU)", kind: "number", min: 1, step: 1 },
  { name: "nic_gbps", label: "Gb/s of a NIC", kind: "range", min: 10, max: 1600, factors: true, step: 10 },
  { name: "strategy", label: "Strategy", kind: "select", options: [["ddp", "DDP"], ["zero1", "ZeRO-1"], ["zero2", "ZeRO-2"], ["zero3", "ZeRO-3, FSDP"]] },
  { name: "tp", label: "Tensor parallel", kind: "number", min: 1, step: 1 },
  { name: "sequence_parallel", label: "Sequence parallel", kind: "select", options: YES_NO },
  { name: "pp", label: "Pipeline stages", kind: "number", min: 1, step: 1 },
  { name: "interleave", label: "Chunks per stage", kind: "number", min: 1, step: 1 },
  { name: "microbatch", label: "Microbatch, sequences", kind: "number", min: 1, step: 1 },
  { name: "tokens_per_gpu", label: "Tokens per GPU (8,192)", kind: "number", min: 1, step: 1 },
  { name: "global_batch", label: "or global batch, sequences", kind: "number", min: 1, step: 1 },
  { name: "recompute", label: "Recompute", kind: "select", options: named(["none", "selective", "full"]) },
  { name: "max_gpus", label: "Curve up to", kind: "range", min: 8, max: 16384, factors: true, powers: true },
];

// What is drawn of a step: names as people say them, and the colour of each.
const SECONDS = [
  ["compute", "compute", "compute"], ["recompute", "recomputation", "backward"], ["tensor_parallel", "tensor parallel", "h2d"],
  ["pipeline_transfer", "pipeline transfers", "load"], ["pipeline_bubble", "pipeline bubble", "bubble"], ["stage_imbalance", "last stage's logits", "slow"],
  ["data_parallel", "gradients and weights, exposed", "allreduce"], ["waiting", "waiting for the slowest", "waiting"], ["optimizer", "optimizer", "optimizer"], ["host", "host and copies", "other"],
];
const MEMORY = [
  ["weights", "weights", "compute"], ["gradients", "gradients", "backward"], ["optimizer", "optimizer", "optimizer"], ["gathered", "gathered", "h2d"],
  ["activations", "activations", "load"], ["fragmentation", "fragmentation", "other"],
];
const gib = (bytes) => `${grouped(bytes / 2 ** 30, bytes < 2 ** 33 ? 1 : 0)} GiB`;
const gigabytes = (bytes) => `${grouped(bytes / 1e9, 2)} GB`;
const long = (seconds) => (seconds < 1 ? milliseconds(1000 * seconds) : duration(seconds));

function draw(shown) {
  drawNumbers(shown);
  drawStack("seconds", SECONDS, shown.prediction.seconds, shown.prediction.step_seconds, long);
  const memory = shown.prediction.memory_bytes;
  drawStack("memory", MEMORY, memory, Math.max(memory.total, shown.prediction.memory_available_bytes), gib);
  drawTraffic(shown.prediction.communication);
  drawScaling(shown);
}

function drawNumbers({ prediction, remedies, model, machine }) {
  byId("plan-step").textContent = long(prediction.step_seconds);
  byId("plan-tokens").textContent = grouped(prediction.tokens_per_second);
  byId("plan-mfu").textContent = percent(prediction.mfu_ratio, 1);
  byId("plan-memory").textContent = gib(prediction.memory_bytes.total);
  byId("plan-memory").classList.toggle("bad", !prediction.fits);
  byId("plan-bubble").textContent = percent(prediction.bubble_ratio, 1);
  byId("plan-shape").textContent = `${model.name}, ${grouped(model.parameters / 1e9, 1)} B parameters, on ${grouped(prediction.gpus)} × ${machine.accelerator}: tensor ${prediction.tp} × pipeline ${prediction.pp} × data ${prediction.dp}`;
  const over = prediction.memory_bytes.total - prediction.memory_available_bytes;
  byId("fits").textContent = prediction.fits
    ? `It fits: ${gib(-over)} of ${gib(prediction.memory_available_bytes)} are left.`
    : `It does not fit: ${gib(over)} too much. ${remedies.length ? "It would with" : "No two of sharding, recomputation, tensor and pipeline parallelism make it fit: take more GPUs."}`;
  byId("fits").classList.toggle("error", !prediction.fits);
  redraw(byId("remedies"), remedies, () => remedies.map((one) => element("button", { type: "button", onclick: () => calculator.also(changes(one)) }, said(one))));
}

/** A remedy is written as options of the command: here it sets fields. */
const changes = (remedy) => Object.fromEntries([...remedy.matchAll(/--(\S+) (\S+)/g)].map(([, name, value]) => [name.replaceAll("-", "_"), value]));
const said = (remedy) => Object.entries(changes(remedy)).map((pair) => pair.join(" ")).join(" and ");

function drawStack(id, parts, values, total, text) {
  const shown = parts.filter(([name]) => values[name] > total * 5e-4);
  redraw(byId(id), [shown, values, total], () => {
    const bar = element("div", { className: "stack", "aria-hidden": true }, ...shown.map(([name, , tone]) => {
      const part = element("i", { className: `tone-${tone}` });
      part.style.width = `${(100 * values[name]) / total}%`;
      return part;
    }));
    const legend = shown.map(([name, label, tone]) =>
      element("li", {}, element("i", { className: `tone-${tone}` }), `${label} `, element("b", { className: "number" }, text(values[name]))));
    return [bar, element("ul", { className: "legend" }, ...legend)];
  });
}

function drawTraffic(communication) {
  const kinds = [["data", "data parallel"], ["tensor", "tensor parallel"], ["pipeline", "pipeline"]].filter(([name]) => communication[name].sent_bytes_per_gpu > 0);
  redraw(byId("traffic"), communication, () => kinds.map(([name, label]) => element("tr", {}, element("th", { scope: "row" }, label),
    element("td", { className: "right" }, gigabytes(communication[name].sent_bytes_per_gpu)), element("td", { className: "right" }, long(communication[name].seconds)))));
  byId("traffic-none").hidden = kinds.length > 0;
}

const knee = ({ knee_gpus: at, knee_is_last: none, pays_ratio: pays, points }) =>
  none ? `No knee up to ${grouped(points.at(-1).gpus)} GPUs: each added GPU brings at least ${percent(pays)} of what one does at its best size.`
    : `The knee is at ${grouped(at)} GPUs: beyond it, an added GPU brings less than ${percent(pays)} of what one does at its best size.`;

let chart = null;

function drawScaling({ scaling, question }) {
  byId("knee-weak").textContent = knee(scaling.weak);
  byId("knee-strong").textContent = knee(scaling.strong);
  const at = scaling.weak.points.map((point) => point.gpus);
  const strong = new Map(scaling.strong.points.map((point) => [point.gpus, point.efficiency_ratio]));
  drawChart(at, scaling.weak.points.map((point) => point.efficiency_ratio), at.map((gpus) => strong.get(gpus) ?? null), scaling, question.gpus);
  const rows = scaling[byId("which").value].points;
  redraw(byId("points"), [rows, question.gpus], () => rows.map((point) => element("tr", { className: point.gpus === question.gpus ? "here" : "" },
    ...[grouped(point.gpus), long(point.step_seconds), grouped(point.tokens_per_second), percent(point.efficiency_ratio, 1), point.marginal_ratio === null ? "" : percent(point.marginal_ratio)]
      .map((text) => element("td", { className: "right" }, text)),
    element("td", {}, `${SECONDS.find(([name]) => name === point.largest_loss)?.[1] ?? point.largest_loss}, ${percent(point.seconds[point.largest_loss] / point.step_seconds, 1)}`),
    element("td", { className: point.fits ? "" : "error" }, point.fits ? "yes" : "no"))));
}

function drawChart(at, weak, strong, scaling, here) {
  const target = byId("scaling");
  chart?.destroy();
  const value = (_, raw) => (raw === null || raw === undefined ? "–" : percent(raw, 1));
  chart = new uPlot({
    width: target.clientWidth,
    height: 250,
    cursor: { drag: { x: false, y: false } },
    scales: { x: { time: false, distr: 3, log: 2, range: [at[0], Math.max(at.at(-1), 2 * at[0])] }, y: { range: [0, 1.05] } },
    axes: [gpusAxis(at), { ...percentAxis(), splits: () => [0, 0.25, 0.5, 0.75, 1] }],
    series: [{ label: "GPUs" }, { label: "weak scaling", stroke: colour("compute"), width: 2, points: { show: true, size: 6 }, value },
      { label: "strong scaling", stroke: colour("slow"), width: 2, dash: [6, 4], points: { show: true, size: 6 }, value }],
    hooks: { draw: [(made) => marks(made, scaling, here)] },
  }, [at, weak, strong], target);
}

/** Where the job is, and the knees. */
function marks(made, scaling, here) {
  const { ctx, bbox } = made;
  const ratio = window.devicePixelRatio || 1;
  ctx.save();
  ctx.font = `${12 * ratio}px system-ui, sans-serif`;
  const mark = (gpus, text, tone, row) => {
    const x = made.valToPos(gpus, "x", true);
    ctx.strokeStyle = ctx.fillStyle = colour(tone);
    ctx.setLineDash([3 * ratio, 3 * ratio]);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.textAlign = x > bbox.left + 0.8 * bbox.width ? "right" : "left";
    ctx.fillText(text, x + (ctx.textAlign === "left" ? 5 : -5) * ratio, bbox.top + bbox.height - (8 + 15 * row) * ratio);
  };
  mark(here, "this job", "text", 0);
  if (!scaling.weak.knee_is_last) mark(scaling.weak.knee_gpus, "weak knee", "compute", 1);
  if (!scaling.strong.knee_is_last) mark(scaling.strong.knee_gpus, "strong knee", "slow", 2);
  ctx.restore();
}

beginTheme();
const { options } = await (await fetch("/plan.json")).json();
const calculator = new Calculator({ path: "/plan.json", fields: fields(options), draw });
byId("which").onchange = () => calculator.answer && drawScaling(calculator.answer);
