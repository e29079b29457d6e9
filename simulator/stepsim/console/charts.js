// The last ten minutes, with marks where faults were active.

import uPlot from "/console/vendor/uplot.js";
import { byId, colour, percent, phaseText, targetText } from "./dom.js";

const SECONDS = 600;
const PHASES = ["forward", "backward", "optimizer", "allreduce", "h2d", "data_wait", "checkpoint", "other"];
const HEIGHT = 170;

const ratio = (value) => percent(value, 1);

/** Each chart: what it takes from the trace, one row of values per line, and how it is drawn. */
const CHARTS = [
  {
    id: "mirage",
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
    scale: { distr: 3, range: (_, low, high) => [Math.min(0.1, low ?? 0.1), Math.max(1, high ?? 1) * 1.3] },
    value: (value) => (value === null || value === undefined ? "–" : value.toPrecision(3)),
  },
];

export class Charts {
  constructor() {
    this.trace = [];
    this.faults = [];
    this.charts = [];
    window.addEventListener("theme", () => this.build());
    new ResizeObserver(() => this.charts.forEach((chart) => chart.setSize({ width: chart.root.parentElement.clientWidth, height: HEIGHT })))
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
    const axis = { stroke: colour("dim"), grid: { stroke: colour("edge"), width: 1 }, ticks: { stroke: colour("edge"), width: 1 } };
    // Where the pointer is, else the latest.
    const value = (made, _, line, index) => {
      const at = index ?? made.data[0].length - 1;
      return at < 0 ? "–" : chart.value(made.data[line][at], made, line, at);
    };
    return {
      width: target.clientWidth,
      height: HEIGHT,
      cursor: { sync: { key: "console" }, points: { size: 6 }, drag: { x: false, y: false } },
      legend: { live: true },
      scales: { x: { time: true, range: () => [this.now - SECONDS, this.now] }, y: chart.scale },
      axes: [
        { ...axis, values: (_, marks) => marks.map((mark) => ago(this.now - mark)), splits: () => [600, 480, 360, 240, 120, 0].map((back) => this.now - back) },
        { ...axis, size: 54, values: (_, marks) => marks.map((mark) => (mark === null ? "" : chart.id === "norm" ? String(mark) : `${Math.round(100 * mark)} %`)) },
      ],
      series: [{ label: "time" }, ...chart.lines().map((line) => ({ ...line, value, points: { show: false }, spanGaps: false }))],
      bands: chart.bands?.() ?? [],
      hooks: { drawClear: [(made) => this.shade(made)], draw: [(made) => this.name(made)] },
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

  /** Of each fault, beneath one another where they begin at about the same time. */
  name(chart) {
    const { ctx } = chart;
    const size = 11 * (window.devicePixelRatio || 1);
    const ends = [];
    ctx.save();
    ctx.font = `${size}px system-ui, sans-serif`;
    ctx.textAlign = "left";
    for (const [fault, begins] of this.spans(chart).sort((a, b) => a[1] - b[1])) {
      const text = `${fault.fault}, ${targetText(fault.target)}`;
      const width = ctx.measureText(text).width;
      const x = Math.min(begins + 3, chart.bbox.left + chart.bbox.width - width - 2);
      const line = ends.findIndex((end) => end < x);
      const row = line < 0 ? ends.length : line;
      ends[row] = x + width + 6;
      const y = chart.bbox.top + (row + 1) * (size + 3);
      ctx.fillStyle = colour("card");
      ctx.globalAlpha = 0.75;
      ctx.fillRect(x - 2, y - size, width + 4, size + 3);
      ctx.globalAlpha = 1;
      ctx.fillStyle = colour("danger");
      ctx.fillText(text, x, y);
    }
    ctx.restore();
  }
}

const ago = (seconds) => (seconds < 5 ? "now" : seconds < 60 ? `−${Math.round(seconds)} s` : `−${Math.round(seconds / 60)} min`);
