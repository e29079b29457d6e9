// The console: what the lab sends goes to the parts of the page.

import { AllReduce } from "./allreduce.js";
import { Charts } from "./charts.js";
import { drawAlerts, drawDiagnosis, reading, standing } from "./diagnosis.js";
import { byId, clockTime, duration, element, percent, redraw } from "./dom.js";
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

function drawNumbers(state) {
  const { job } = state;
  byId("job").textContent = `${job.run ?? "a job"}: ${job.ranks} × ${job.accelerator} on ${job.nodes} node${job.nodes > 1 ? "s" : ""}, ${job.model}`;
  byId("utilization").textContent = percent(state.utilization);
  byId("utilization-of").textContent = job.utilization_of ? `GPU utilization, ${job.utilization_of}` : "GPU utilization";
  byId("no-gpu").hidden = state.utilization !== null || state.mfu === null;
  byId("mfu").textContent = percent(state.mfu);
  byId("data-wait").textContent = percent(state.data_wait);
  byId("step-seconds").textContent = duration(state.step_seconds);
  for (const [id, value] of [["loss", state.loss], ["gradient-norm", state.gradient_norm]]) {
    byId(id).textContent = typeof value === "number" ? value.toPrecision(3) : (value ?? "–");
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
  drawStandstill(state);
}

/** Announced once; how long it is by now is no news. */
function drawStandstill(state) {
  const still = standing(state);
  const text = still !== null ? "No step ends any more." : "";
  if (byId("standstill").textContent !== text) byId("standstill").textContent = text;
  byId("standstill-for").textContent = still !== null ? `The last one did ${still.toFixed(0)} s ago.` : "";
}

const handlers = {
  opening(opening) {
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
    step.add(lap);
  },
  link(state, at) {
    byId("link").dataset.state = byId("link").textContent = state;
    byId("gone").hidden = state !== "gone";
    byId("gone").textContent = `The lab does not answer. What you see is as of ${clockTime(at / 1000)}; it is asked again every few seconds.`;
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
  if (event.target.closest("dialog")) return;
  const within = event.target.closest("input, select, textarea, button, a, summary");
  if (event.ctrlKey || event.metaKey || event.altKey || (within && (within.tagName !== "BUTTON" || event.key === " "))) return;
  if (/^[a-z]$/.test(event.key) && !byId("letters").checked) return;
  if (KEYS[event.key]) {
    event.preventDefault();
    KEYS[event.key]();
  }
});
byId("show-keys").onclick = () => byId("keys").showModal();
byId("close-keys").onclick = () => byId("keys").close();
follow(handlers);
