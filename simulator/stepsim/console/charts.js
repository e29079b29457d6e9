// The last ten minutes, with marks where faults were active.

import uPlot from "/console/vendor/uplot.js";
import { axis, percentAxis } from "./axes.js";
import { byId, colour, percent, phaseText, targetText } from "./dom.js";

const SECONDS = 600;
const PHASES = ["forward", "backward", "optimizer", "allreduce", "h2d", "data_wait", "checkpoint", "other"];
const HEIGHT = 170;
const NAME_ROWS = 2;
const NAME_HEIGHT = 15;

const ratio = (value) => percent(value, 1);

/** Each chart: what it takes from the trace, one row of values per line, and how it is drawn. */
const CHARTS = [
  {
    id: "mirage",
    names: true,
    rows: (trace) => [trace.map((point) => point.utilization), trace.map((point) => point.mfu)],
    lines: () => [
      { label: "GPU utilization", stroke: colour("util"), width: 2 },
      { label: "MFU", stroke: colour("mfu"), width: 2 },
    ],
    bands: () => [{ series: [1, 2], fill: colour("util").replace("rgb(", "rgba(").replace(")", ", 0.13)") }],
    scale: { range: [0, 1] },
    value: ratio,
  },
  {
    id: "path",
    // Stacked: the first is drawn last, from the bottom.
    rows: (trace) => PHASES.map((_, index) => trace.map((point) => point.critical_path && PHASES.slice(0, index + 1).reduce((sum, phase) => sum + point.critical_path[phase], 0))).reverse(),
    lines: () => [...PHASES].reverse().map((phase) => ({ label: phaseText(phase), stroke: colour(phase), fill: colour(phase), width: 0 })),
    scale: { range: [0, 1] },
    // What is shown beside the name is the phase's own share, not the sum up to it.
    value: (_, chart, line, index) => ratio(chart.data[line][index] - (chart.data[line + 1]?.[index] ?? 0)),
  },
  {
    id: "norm",
    rows: (trace) => [trace.map((point) => (typeof point.gradient_norm === "number" ? point.gradient_norm : null))],
    lines: () => [{ label: "gradient norm", stroke: colour("text"), width: 1.6 }],
    // It leaves the picture on its way to infinity: the decades before are what there is to see.
    scale: { distr: 3, range: (_, low, high) => [Math.min(0.1, Math.max(1e-4, low ?? 0.1)), Math.min(1e6, Math.max(1, high ?? 1) * 1.3)] },
    mark: (mark) => (isDecade(mark) ? short(mark) : ""),
    value: (value) => (value === null || value === undefined ? "–" : value.toPrecision(3)),
  },
];

export class Charts {
  constructor() {
    this.trace = [];
    this.faults = [];
    this.charts = [];
    window.addEventListener("theme", () => this.build());
    new ResizeObserver(() => this.charts.forEach((chart) => chart.setSize({ width: chart.root.parentElement.clientWidth, height: chart.height })))
      .observe(byId("charts"));
  }

  open(opening) {
    this.trace = opening.trace;
    this.update(opening);
    this.build();
  }

  add(state) {
    const { time, utilization, mfu, critical_path, gradient_norm } = state;
    if (time && time !== this.trace.at(-1)?.time) this.trace.push({ time, utilization, mfu, critical_path, gradient_norm });
    this.trace = this.trace.filter((point) => point.time > state.now - SECONDS);
    this.update(state);
    CHARTS.forEach((chart, index) => this.charts[index]?.setData(this.data(chart)));
  }

  update(state) {
    const active = state.faults.map((fault) => ({ ...fault, ended: state.now }));
    this.faults = [...state.ended_faults, ...active].filter((fault) => fault.started < state.now);
    this.now = state.now;
  }

  data(chart) {
    return [this.trace.map((point) => point.time), ...chart.rows(this.trace)];
  }

  build() {
    this.charts.forEach((chart) => chart.destroy());
    this.charts = CHARTS.map((chart) => {
      const target = byId(`chart-${chart.id}`);
      return new uPlot(this.options(chart, target), this.data(chart), target);
    });
  }

  options(chart, target) {
    // Where the pointer is, else the latest.
    const value = (made, _, line, index) => {
      const at = index ?? made.data[0].length - 1;
      return at < 0 ? "–" : chart.value(made.data[line][at], made, line, at);
    };
    return {
      width: target.clientWidth,
      height: HEIGHT + (chart.names ? (NAME_ROWS + 1) * NAME_HEIGHT : 0),
      cursor: { sync: { key: "console" }, points: { size: 6 }, drag: { x: false, y: false } },
      legend: { live: true },
      scales: { x: { time: true, range: () => [this.now - SECONDS, this.now] }, y: chart.scale },
      axes: [
        { ...axis(), values: (_, marks) => marks.map((mark) => ago(this.now - mark)), splits: () => [600, 480, 360, 240, 120, 0].map((back) => this.now - back) },
        chart.mark ? decadesAxis(chart.mark) : percentAxis(),
      ],
      series: [{ label: "time" }, ...chart.lines().map((line) => ({ ...line, value, points: { show: false }, spanGaps: false }))],
      bands: chart.bands?.() ?? [],
      padding: [chart.names ? (NAME_ROWS + 1) * NAME_HEIGHT + 4 : 8, 12, 0, 0],
      hooks: { drawClear: [(made) => this.shade(made)], draw: [(made) => (chart.names ? this.name(made) : this.edge(made)), (made) => chart.id === "norm" && this.lost(made)] },
    };
  }

  spans(chart) {
    return this.faults.map((fault) => [fault, Math.max(chart.bbox.left, chart.valToPos(fault.started, "x", true)), Math.min(chart.bbox.left + chart.bbox.width, chart.valToPos(fault.ended, "x", true))])
      .filter(([, begins, ends]) => ends > begins);
  }

  shade(chart) {
    chart.ctx.fillStyle = colour("fault");
    for (const [, begins, ends] of this.spans(chart)) chart.ctx.fillRect(begins, chart.bbox.top, ends - begins, chart.bbox.height);
  }

  /** Where the critical path fills the picture, shading cannot be seen: a line along its upper edge can. */
  edge(chart) {
    chart.ctx.fillStyle = colour("danger");
    for (const [, begins, ends] of this.spans(chart)) chart.ctx.fillRect(begins, chart.bbox.top - 3, ends - begins, 3);
  }

  /** The faults' names, in a strip above the picture; what was started twice is named once. */
  name(chart) {
    const { ctx } = chart;
    const ratio = window.devicePixelRatio || 1;
    const rows = Array.from({ length: NAME_ROWS }, () => chart.bbox.left);
    this.edge(chart);
    ctx.save();
    ctx.font = `${11 * ratio}px system-ui, sans-serif`;
    ctx.textAlign = "left";
    ctx.textBaseline = "alphabetic"; // uPlot leaves its own
    ctx.fillStyle = colour("danger");
    const named = new Map(this.spans(chart).sort((a, b) => a[1] - b[1]).map(([fault, begins]) => [`${fault.fault}, ${targetText(fault.target)}`, begins]));
    let left = 0;
    for (const [text, begins] of named) {
      const width = ctx.measureText(text).width;
      const x = Math.min(begins, chart.bbox.left + chart.bbox.width - width);
      const row = rows.findIndex((end) => end <= x);
      if (row < 0) {
        left += 1;
        continue;
      }
      rows[row] = x + width + 10 * ratio;
      ctx.fillText(text, x, chart.bbox.top - (5 + row * NAME_HEIGHT) * ratio);
    }
    if (left) {
      ctx.textAlign = "right";
      ctx.fillText(`and ${left} more`, chart.bbox.left + chart.bbox.width, chart.bbox.top - (5 + NAME_ROWS * NAME_HEIGHT) * ratio + 2);
    }
    ctx.restore();
  }

  /** Where the gradient is no number any more. */
  lost(chart) {
    const from = this.trace.findLastIndex((point) => typeof point.gradient_norm === "number") + 1;
    if (from === 0 || from === this.trace.length || this.trace[from].gradient_norm === null) return;
    const { ctx } = chart;
    const x = chart.valToPos(this.trace[from].time, "x", true);
    ctx.save();
    ctx.fillStyle = colour("danger");
    ctx.font = `${12 * (window.devicePixelRatio || 1)}px system-ui, sans-serif`;
    ctx.textAlign = x > chart.bbox.left + 0.6 * chart.bbox.width ? "right" : "left";
    ctx.fillText(` ${this.trace[from].gradient_norm} from here `, x, chart.bbox.top + chart.bbox.height / 2);
    ctx.restore();
  }
}

const isDecade = (mark) => Math.abs(Math.log10(mark) - Math.round(Math.log10(mark))) < 1e-9;
const decades = (_, marks) => marks.map((mark) => (isDecade(mark) ? mark : null));
function decadesAxis(text) {
  const usual = axis();
  return { ...usual, size: 54, grid: { ...usual.grid, filter: decades }, ticks: { ...usual.ticks, filter: decades }, values: (_, marks) => marks.map((mark) => (mark === null ? "" : text(mark))) };
}
const short = (value) => (value >= 1e6 ? `${value / 1e6}M` : value >= 1000 ? `${value / 1000}k` : String(value));
const ago = (seconds) => (seconds < 5 ? "now" : seconds < 60 ? `−${Math.round(seconds)} s` : `−${Math.round(seconds / 60)} min`);
