// The step, animated: a row per rank or node, phases on one axis of time, the barrier, and who came last.

import { byId, colour, element, font, hatching, milliseconds, phaseText, surface } from "./dom.js";
import { told, understood, whose } from "./lap.js";

const KEPT = 300;
const MOST_KEPT = 1200; // while the picture is held
const LEAST_HEIGHT = 170;
const RECENT = 30;
const LONGEST = 3; // usual laps that a longer one takes to be drawn
const ROW = 15;
const TOP = 22;
const AHEAD = 0.22; // how visible that is which is still to come
const still = window.matchMedia("(prefers-reduced-motion: reduce)");

export class StepView {
  constructor() {
    this.canvas = byId("step");
    this.tip = byId("step-tip");
    this.laps = [];
    this.phases = [];
    this.index = -1;
    this.playhead = 0;
    this.paused = false;
    this.slower = Number(byId("speed").value);
    this.selected = null;
    this.drawnWith = "";
    byId("pause").onclick = () => this.pause(!this.paused);
    byId("back").onclick = () => this.step(-1);
    byId("forward").onclick = () => this.step(1);
    byId("speed").onchange = () => (this.slower = Number(byId("speed").value));
    this.canvas.onpointermove = (event) => this.point(event);
    this.canvas.onpointerleave = () => this.select(null);
    this.canvas.onkeydown = (event) => this.key(event);
    this.canvas.onblur = () => this.select(null);
    window.addEventListener("theme", () => this.repaint());
    new ResizeObserver(() => this.repaint()).observe(this.canvas.parentElement);
    requestAnimationFrame((now) => this.run(now, now));
  }

  open(opening) {
    this.phases = opening.phases;
    this.job = opening.job;
    this.laps = [];
    this.index = -1;
    this.selected = null;
    this.tip.hidden = true;
    if (opening.lap) this.add(opening.lap);
  }

  add(lap) {
    if (this.laps.at(-1)?.step === lap.step) return; // the opening told of it
    if (this.paused && this.laps.length >= MOST_KEPT) return; // what is looked at stays
    this.laps.push(understood(lap, this.phases));
    while (this.laps.length > KEPT && !this.paused) {
      this.laps.shift();
      this.index -= 1;
    }
    if (this.index < 0) this.show(this.laps.length - 1);
    byId("forward").disabled = false;
  }

  get lap() {
    return this.laps[this.index];
  }

  show(index, whole = false) {
    this.index = Math.max(0, Math.min(index, this.laps.length - 1));
    this.playhead = whole || still.matches ? this.lap.total : 0;
    this.shownSince = performance.now();
    byId("step-told").textContent = told(this.lap);
    byId("step-rows").textContent = this.rowsAre();
    if (this.selected !== null) this.select(this.selected < this.lap.rows.length ? this.selected : null, this.pointed);
    byId("back").disabled = this.index === 0;
    this.repaint();
  }

  rowsAre() {
    const { rows } = this.lap;
    if (rows.every((row) => row.name === `rank ${row.rank}`)) return "a row per rank";
    const nodes = Math.ceil(this.job.nodes / rows.length);
    return nodes > 1 ? `a row per ${nodes} nodes: their last rank to arrive` : "a row per node: its last rank to arrive";
  }

  pause(paused) {
    this.paused = paused;
    byId("pause").textContent = paused ? "Play" : "Pause";
    byId("pause").setAttribute("aria-pressed", paused);
    if (!paused && this.lap) this.show(this.laps.length - 1);
  }

  step(by) {
    if (!this.lap) return;
    if (!this.paused) this.pause(true);
    else if (this.playhead < this.lap.total && by > 0) by = 0; // first to the end of this one
    this.show(this.index + by, true);
  }

  run(now, before) {
    requestAnimationFrame((next) => this.run(next, now));
    if (!this.lap || this.paused) return;
    if (this.playhead < this.lap.total) {
      this.playhead = Math.min(this.lap.total, this.playhead + (now - before) * this.pace());
      this.draw();
    } else if (this.index < this.laps.length - 1 && (!still.matches || now - this.shownSince > 1000)) this.show(this.laps.length - 1);
  }

  /** Milliseconds of the lap in one of ours. One that is far longer than usual is not waited for as long as it was. */
  pace() {
    const totals = this.laps.slice(-RECENT).map((lap) => lap.total).sort((a, b) => a - b);
    const usual = totals[Math.floor(totals.length / 2)];
    return Math.max(1, this.lap.total / (LONGEST * usual)) / this.slower;
  }

  repaint() {
    this.drawnWith = "";
    this.draw();
  }

  layout(width) {
    const rows = this.lap.rows.length;
    const height = Math.max(LEAST_HEIGHT, Math.min(rows * ROW, 0.36 * window.innerHeight)) + TOP + 20;
    const em = parseFloat(getComputedStyle(document.documentElement).fontSize);
    const longest = Math.max(...this.lap.rows.map((row) => row.name.length));
    const left = 0.52 * em * longest + 12;
    return { height, left, right: width - 5.2 * em, em, rowHeight: (height - TOP - 20) / rows };
  }

  draw() {
    if (!this.lap) return;
    const place = this.layout(this.canvas.parentElement.clientWidth);
    const { context, width, height } = surface(this.canvas, place.height);
    const x = (ms) => place.left + (ms / this.lap.total) * (place.right - place.left);
    this.place = { ...place, x };
    const bars = this.bars(width, height);
    context.globalAlpha = AHEAD;
    context.drawImage(bars, 0, 0, width, height);
    context.globalAlpha = 1;
    context.save();
    context.beginPath();
    context.rect(0, 0, x(this.playhead), height);
    context.clip();
    context.drawImage(bars, 0, 0, width, height);
    context.restore();
    this.drawAxis(context, height);
    this.drawNames(context);
    this.drawBarrier(context, height);
    if (this.playhead < this.lap.total) this.line(context, x(this.playhead), height, colour("text"), []);
  }

  /** All bars of a lap, drawn once. */
  bars(width, height) {
    const key = [this.lap.step, width, height].join();
    if (this.drawnWith === key) return this.painted;
    const ratio = window.devicePixelRatio || 1;
    this.painted = element("canvas", { width: width * ratio, height: height * ratio });
    const context = this.painted.getContext("2d");
    context.scale(ratio, ratio);
    const fill = Object.fromEntries([...this.phases, "waiting"].map((phase) => [phase, phase === "waiting" ? hatching(context) : colour(phase)]));
    const { rowHeight, x } = this.place;
    const gap = rowHeight > 7 ? 2 : rowHeight > 3 ? 0.6 : 0;
    this.lap.rows.forEach((row, index) => {
      let at = this.lap.total - row.total;
      for (const [phase, length] of row.parts) {
        context.fillStyle = fill[phase];
        context.fillRect(x(at), TOP + index * rowHeight, Math.max(0, x(at + length) - x(at)), rowHeight - gap);
        at += length;
      }
    });
    this.drawnWith = key;
    return this.painted;
  }

  drawAxis(context, height) {
    const { x, right } = this.place;
    font(context, 0.75);
    context.fillStyle = colour("dim");
    context.textAlign = "center";
    const step = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 30000].find((size) => this.lap.total / size <= 9) ?? 60000;
    for (let ms = 0; ms <= this.lap.total; ms += step) context.fillText(ms ? `${ms}` : "0 ms", x(ms), height - 5);
    context.textAlign = "left";
    context.fillText("time →", right + 8, height - 5);
  }

  drawNames(context) {
    const { rowHeight, left, em } = this.place;
    const every = Math.max(1, Math.ceil((0.9 * em) / rowHeight));
    font(context, Math.min(0.8, Math.max(0.62, rowHeight / em)));
    context.textAlign = "right";
    context.textBaseline = "middle";
    this.lap.rows.forEach((row, index) => {
      if (index % every || Math.abs(index - this.lap.last) * rowHeight < 0.9 * em) return;
      context.fillStyle = colour("dim");
      context.fillText(row.name, left - 6, TOP + (index + 0.5) * rowHeight);
    });
    if (this.selected !== null) {
      context.strokeStyle = colour("text");
      context.lineWidth = 1.5;
      context.strokeRect(left - 1, TOP + this.selected * rowHeight - 0.5, this.place.right - left + 2, Math.max(3, rowHeight));
    }
    if (this.lap.rows.length > 1) {
      const y = TOP + (this.lap.last + 0.5) * rowHeight;
      font(context, 0.85, "bold");
      context.fillStyle = colour("text");
      context.fillText(this.lap.rows[this.lap.last].name, left - 6, y);
      context.textAlign = "left";
      context.fillText("◀ last", this.place.right + 6, y);
    }
    context.textBaseline = "alphabetic";
  }

  drawBarrier(context, height) {
    const at = this.place.x(this.lap.barrier);
    if (this.lap.rows.length === 1) return;
    this.line(context, at, height, colour("danger"), [5, 4]);
    font(context, 0.78);
    context.fillStyle = colour("danger");
    context.textAlign = "right";
    context.fillText("barrier: the last one has arrived", at - 4, TOP - 8);
    context.textAlign = "left";
  }

  line(context, at, height, stroke, dash) {
    context.save();
    context.strokeStyle = stroke;
    context.setLineDash(dash);
    context.lineWidth = 1.5;
    context.beginPath();
    context.moveTo(at, TOP - 6);
    context.lineTo(at, height - 18);
    context.stroke();
    context.restore();
  }

  point(event) {
    if (!this.place || !this.lap) return;
    const row = Math.floor((event.offsetY - TOP) / this.place.rowHeight);
    this.select(row >= 0 && row < this.lap.rows.length ? row : null, event.offsetX);
  }

  key(event) {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!by || !this.lap) return;
    event.preventDefault();
    const next = this.selected === null ? this.lap.last : this.selected + by;
    this.select(Math.max(0, Math.min(next, this.lap.rows.length - 1)), this.place.left + 20);
  }

  select(row, x = 0) {
    this.selected = row;
    this.pointed = x;
    this.tip.hidden = row === null;
    if (row !== null) this.describe(this.lap.rows[row], row, x);
    this.draw();
  }

  describe(row, index, x) {
    const cells = row.parts.filter(([, value]) => value > 0.005).map(([phase, value]) =>
      element("tr", {}, element("td", {}, phase === "waiting" ? "waiting in all-reduce" : phaseText(phase)), element("td", {}, milliseconds(value))));
    this.tip.replaceChildren(element("b", {}, whose(row)), element("table", {}, element("tbody", {}, ...cells)));
    const width = this.tip.offsetWidth;
    const y = TOP + (index + 1) * this.place.rowHeight + 6;
    this.tip.style.left = `${Math.min(x + 14, this.canvas.clientWidth - width - 4)}px`;
    this.tip.style.top = `${Math.min(y, this.canvas.clientHeight - 10)}px`;
  }
}
