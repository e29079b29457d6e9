// Shows the all-reduce moving, in a dialog.

import { after, ring, sent, start, tree } from "./collective.js";
import { byId, colour, font, grouped, surface } from "./dom.js";

const HEIGHT = 380;
const BOX = 0.62; // of a GPU's place
const SECONDS = 1.1; // for a step

export class AllReduce {
  constructor() {
    this.canvas = byId("allreduce");
    this.bytes = null;
    this.playing = false;
    byId("show-allreduce").onclick = () => this.open();
    byId("close-allreduce").onclick = () => byId("allreduce-dialog").close();
    byId("allreduce-dialog").onclose = () => this.play(false);
    byId("allreduce-kind").onchange = () => this.begin();
    byId("allreduce-gpus").onchange = () => this.begin();
    byId("allreduce-play").onclick = () => this.play(!this.playing);
    byId("allreduce-step").onclick = () => this.single();
    byId("allreduce-again").onclick = () => this.begin();
    window.addEventListener("theme", () => byId("allreduce-dialog").open && this.draw());
    window.addEventListener("resize", () => byId("allreduce-dialog").open && this.draw());
  }

  about(job) {
    this.bytes = job.gradient_bytes ?? null;
    if (job.gpus_per_node) byId("allreduce-gpus").value = Math.max(2, Math.min(16, job.gpus_per_node));
  }

  open() {
    byId("allreduce-dialog").showModal();
    this.begin();
    this.play(!window.matchMedia("(prefers-reduced-motion: reduce)").matches);
  }

  begin() {
    this.n = Math.max(2, Math.min(16, Math.round(Number(byId("allreduce-gpus").value)) || 8));
    byId("allreduce-gpus").value = this.n;
    this.steps = (byId("allreduce-kind").value === "ring" ? ring : tree)(this.n);
    this.held = start(this.n);
    this.done = 0;
    this.moving = 0;
    this.tell();
    this.draw();
  }

  play(playing) {
    if (playing && this.done === this.steps.length) this.begin();
    this.playing = playing;
    byId("allreduce-play").textContent = playing ? "Pause" : "Play";
    if (playing) requestAnimationFrame((now) => this.run(now, now));
  }

  run(now, before) {
    if (!this.playing) return;
    this.moving += (now - before) / 1000 / SECONDS;
    if (this.moving >= 1) this.finish();
    this.draw();
    if (this.done === this.steps.length) this.play(false);
    else requestAnimationFrame((next) => this.run(next, now));
  }

  single() {
    this.play(false);
    if (this.done < this.steps.length) this.finish();
    this.draw();
  }

  finish() {
    this.held = after(this.held, this.steps[this.done]);
    this.done += 1;
    this.moving = 0;
    this.tell();
  }

  tell() {
    const total = this.steps.length;
    const share = sent(this.steps, this.done, this.n);
    const all = sent(this.steps, total, this.n);
    const rule = byId("allreduce-kind").value === "ring" ? `2(n − 1) = ${total}` : `2·⌈log₂ n⌉ = ${total}`;
    const phase = this.done < total ? this.steps[this.done].phase : "done: every GPU holds the whole sum";
    const bytes = this.bytes ? `, ${gigabytes(share * this.bytes)} of ${gigabytes(all * this.bytes)}` : "";
    byId("allreduce-told").textContent =
      `Step ${this.done} of ${rule}; ${phase}. The busiest GPU has sent ${share.toFixed(2)} of ${all.toFixed(2)} times the gradients${bytes}.`;
  }

  /** GPUs on a circle for the ring, on a line for the tree. */
  place(gpu, width, height) {
    const size = Math.min(84, 0.82 * (byId("allreduce-kind").value === "ring" ? (1.15 * Math.PI * (height - 90)) / this.n : width / this.n));
    if (byId("allreduce-kind").value === "ring") {
      const angle = (2 * Math.PI * gpu) / this.n - Math.PI / 2;
      return { x: width / 2 + Math.cos(angle) * Math.min(width / 2 - 60, 2.4 * (height / 2 - 55)), y: height / 2 + Math.sin(angle) * (height / 2 - 55), size };
    }
    let level = 0;
    while (gpu && gpu % 2 ** (level + 1) === 0) level += 1;
    const levels = Math.ceil(Math.log2(this.n));
    const top = gpu === 0 ? levels : level;
    return { x: ((gpu + 0.5) * width) / this.n, y: height - 50 - (top * (height - 110)) / levels, size };
  }

  draw() {
    if (!this.held) return;
    const { context, width, height } = surface(this.canvas, HEIGHT);
    const places = this.held.map((_, gpu) => this.place(gpu, width, height));
    const now = this.steps[this.done];
    context.strokeStyle = colour("edge");
    for (const { from, to } of this.steps.flatMap((step) => step.sends)) {
      context.beginPath();
      context.moveTo(places[from].x, places[from].y);
      context.lineTo(places[to].x, places[to].y);
      context.stroke();
    }
    this.held.forEach((pieces, gpu) => this.box(context, places[gpu], pieces, `GPU ${gpu}`));
    for (const { from, to, pieces } of now?.sends ?? []) this.packet(context, places[from], places[to], from, pieces);
  }

  /** A bar per piece, as high as the number of GPUs in its sum. */
  box(context, { x, y, size }, pieces, name) {
    const side = size * BOX;
    const left = x - side / 2;
    const top = y - side / 2;
    context.fillStyle = colour("raised");
    context.fillRect(left - 3, top - 3, side + 6, side + 6);
    pieces.forEach((sum, piece) => {
      const share = sum.size / this.n;
      context.fillStyle = share === 1 ? colour("forward") : colour("allreduce");
      context.fillRect(left + (piece * side) / this.n, top + side * (1 - share), side / this.n - 1, side * share);
    });
    font(context, 0.78);
    context.fillStyle = colour("text");
    context.textAlign = "center";
    context.fillText(name, x, top + side + 16);
  }

  packet(context, from, to, gpu, pieces) {
    const eased = this.moving * this.moving * (3 - 2 * this.moving);
    const x = from.x + (to.x - from.x) * eased;
    const y = from.y + (to.y - from.y) * eased;
    const side = Math.max(9, from.size * BOX * (pieces.length === 1 ? 0.3 : 0.5));
    context.fillStyle = this.held[gpu][pieces[0]].size === this.n ? colour("forward") : colour("data_wait");
    context.fillRect(x - side / 2, y - side / 2, side, side);
    if (pieces.length === 1 && side > 12) {
      font(context, 0.7, "bold");
      context.fillStyle = "#000";
      context.textAlign = "center";
      context.textBaseline = "middle";
      context.fillText(String(pieces[0]), x, y);
      context.textBaseline = "alphabetic";
    }
  }
}

const gigabytes = (bytes) => (bytes >= 1e9 ? `${grouped(bytes / 1e9, 2)} GB` : `${grouped(bytes / 1e6, 1)} MB`);
