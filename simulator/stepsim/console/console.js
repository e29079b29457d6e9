// The console: what the lab sends goes to the parts of the page.

import { AllReduce } from "./allreduce.js";
import { Charts } from "./charts.js";
import { drawAlerts, drawDiagnosis, reading } from "./diagnosis.js";
import { byId, duration, element, number, percent, redraw } from "./dom.js";
import { Faults } from "./faults.js";
import { beginPractice, drawDrill } from "./practice.js";
import { StepView } from "./step.js";
import { follow } from "./stream.js";
import { beginTheme } from "./theme.js";

beginTheme();
beginPractice();
const step = new StepView();
const charts = new Charts();
const faults = new Faults();
const allreduce = new AllReduce();
let lapEvery = 1; // seconds from one lap to the next, about
let lapHeard = null;

function drawNumbers(state) {
  const { job } = state;
  byId("job").textContent = `${job.run ?? "a job"}: ${job.ranks} × ${job.accelerator} on ${job.nodes} node${job.nodes > 1 ? "s" : ""}, ${job.model}`;
  byId("utilization").textContent = percent(state.utilization);
  byId("no-gpu").hidden = state.utilization !== null || state.mfu === null;
  byId("mfu").textContent = percent(state.mfu);
  byId("data-wait").textContent = percent(state.data_wait);
  byId("step-seconds").textContent = duration(state.step_seconds);
  for (const [id, value] of [["loss", state.loss], ["gradient-norm", state.gradient_norm]]) {
    byId(id).textContent = number(value);
    byId(id).classList.toggle("bad", typeof value === "string");
  }
}

function draw(state) {
  drawNumbers(state);
  byId("reading").textContent = reading(state);
  drawDiagnosis(state);
  drawAlerts(state);
  faults.update(state);
  drawDrill(state.practice);
  const silent = lapHeard === null ? 0 : (performance.now() - lapHeard) / 1000;
  byId("standstill").textContent = silent > Math.max(5, 4 * lapEvery) ? `No step has ended for ${silent.toFixed(0)} s.` : "";
}

const handlers = {
  opening(opening) {
    lapHeard = opening.lap ? performance.now() : null;
    redraw(byId("links"), opening.links, () => Object.entries(opening.links).map(([name, port]) =>
      element("a", { href: `${location.protocol}//${location.hostname}:${port}/`, target: "_blank", rel: "noreferrer" }, name)));
    allreduce.about(opening.job);
    step.open(opening);
    charts.open(opening);
    faults.open(opening);
    draw(opening);
  },
  state(state) {
    charts.add(state);
    draw(state);
  },
  lap(lap) {
    const now = performance.now();
    if (lapHeard !== null) lapEvery = 0.8 * lapEvery + 0.2 * Math.min(30, (now - lapHeard) / 1000);
    lapHeard = now;
    step.add(lap);
  },
  link(state, silent) {
    byId("link").dataset.state = state;
    byId("link").textContent = { connecting: "connecting …", live: "live", gone: "gone" }[state];
    byId("gone").hidden = state !== "gone";
    byId("gone").textContent = `The lab does not answer. What you see is ${silent.toFixed(0)} s old; it is asked again every few seconds.`;
  },
};

const KEYS = {
  " ": () => step.pause(!step.paused),
  ArrowLeft: () => step.step(-1),
  ArrowRight: () => step.step(1),
  a: () => byId("show-allreduce").click(),
  f: () => byId("fault-filter").focus(),
  t: () => byId("theme").click(),
  "?": () => byId("keys").showModal(),
};

document.addEventListener("keydown", (event) => {
  const within = event.target.closest("input, select, textarea, button, a, summary, dialog");
  if (event.ctrlKey || event.metaKey || event.altKey || (within && (within.tagName !== "BUTTON" || event.key === " "))) return;
  if (KEYS[event.key]) {
    event.preventDefault();
    KEYS[event.key]();
  }
});
byId("show-keys").onclick = () => byId("keys").showModal();
byId("close-keys").onclick = () => byId("keys").close();
follow(handlers);
