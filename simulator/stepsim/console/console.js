"use strict";
// Draws /status once a second, and starts and stops faults.

const byId = (id) => document.getElementById(id);
const percent = (ratio) => (ratio === null ? "–" : `${(100 * ratio).toFixed(ratio < 0.1 ? 1 : 0)} %`);
const number = (value) => (typeof value === "number" ? value.toPrecision(3) : value ?? "–");

function show(id, value) {
  byId(id).textContent = number(value);
  byId(id).classList.toggle("bad", typeof value === "string");
}

function alertItem(alert) {
  const item = element("li", "");
  item.append(
    element("a", alert.labels.alertname, { href: `/runbooks/${alert.labels.alertname}` }),
    `: ${(alert.annotations ?? {}).summary ?? ""}`,
  );
  return item;
}
const duration = (seconds) =>
  seconds === null ? "–" : seconds < 1 ? `${Math.round(1000 * seconds)} ms` : `${seconds.toFixed(2)} s`;
const action = { "X-Stepscope-Action": "console" };

const targetText = (target) =>
  "rank" in target ? `rank ${target.rank}` : "node" in target ? target.node : "the whole run";

function element(tag, text, attributes = {}) {
  const made = document.createElement(tag);
  made.textContent = text;
  return Object.assign(made, attributes);
}

async function change(path, options) {
  byId("error").textContent = "";
  try {
    const answer = await fetch(path, options);
    if (!answer.ok) byId("error").textContent = (await answer.json()).error;
  } catch {
    byId("error").textContent = "the lab does not answer";
  }
  await refresh();
}

const start = (fault) =>
  change("/faults", {
    method: "POST",
    headers: { ...action, "Content-Type": "application/json" },
    body: JSON.stringify({ fault }),
  });

const stop = (id) => change(`/faults/${id}`, { method: "DELETE", headers: action });

function drawChart(trace) {
  const known = trace.filter((point) => point.mfu !== null);
  if (known.length < 2) return;
  const last = known[known.length - 1].time;
  const x = (point) => (600 * (1 - (last - point.time) / 300)).toFixed(1);
  const y = (ratio) => (180 * (1 - Math.min(1, ratio))).toFixed(1);
  const along = (points, key) => points.map((point) => `${x(point)},${y(point[key])}`).join(" L");
  byId("mfu-line").setAttribute("d", `M${along(known, "mfu")}`);
  const used = known.filter((point) => point.utilization !== null); // a job without GPUs has none
  if (used.length < 2) return;
  byId("util-line").setAttribute("d", `M${along(used, "utilization")}`);
  byId("gap").setAttribute("d", `M${along(used, "utilization")} L${along([...used].reverse(), "mfu")} Z`);
}

function drawPath(shares) {
  if (!shares) return;
  const bar = byId("path");
  const legend = byId("path-legend");
  if (!bar.children.length) {
    for (const phase of Object.keys(shares)) {
      const part = element("div", "");
      part.style.background = `var(--${phase})`;
      bar.append(part);
      const swatch = element("i", "");
      swatch.style.background = `var(--${phase})`;
      const entry = element("span", "");
      entry.append(swatch, element("span", phase));
      legend.append(entry);
    }
  }
  Object.entries(shares).forEach(([phase, share], index) => {
    bar.children[index].style.flexGrow = share;
    bar.children[index].title = `${phase} ${percent(share)}`;
    legend.children[index].lastChild.textContent = `${phase} ${percent(share)}`;
  });
}

function reading(status) {
  if (!status.critical_path) return "not enough steps yet";
  if (typeof status.loss === "string") return "The loss is not a number: nothing that follows is of use.";
  const culprit = status.culprit;
  if (culprit) {
    const who = "rank" in culprit ? `Rank ${culprit.rank}` : culprit.node;
    return `${who} holds everyone up, mostly in ${culprit.phase}: it costs ${percent(culprit.share)} of all time.`;
  }
  const data = status.critical_path.data_wait;
  if (data > 0.15) return `Data wait is ${percent(data)} of the critical path, and no single rank or node is to blame.`;
  return "No single culprit.";
}

const list = (id, items, empty) => {
  byId(id).replaceChildren(...items);
  byId(id).dataset.empty = empty;
};

function activeFault(fault) {
  const item = element("li", `${fault.fault} on ${targetText(fault.target)}, severity ${fault.severity}`);
  item.append(element("button", "Stop", { className: "stop", onclick: () => stop(fault.id) }));
  return item;
}

async function refresh() {
  let status;
  try {
    status = await (await fetch("/status")).json();
  } catch {
    byId("job").textContent = "the lab does not answer";
    return;
  }
  if (!byId("buttons").children.length) await offerFaults();
  const job = status.job;
  byId("job").textContent = `${job.ranks} × ${job.accelerator} on ${job.nodes} node${job.nodes > 1 ? "s" : ""}, ${job.model}`;
  byId("utilization").textContent = percent(status.utilization);
  byId("no-gpu").hidden = status.utilization !== null || status.mfu === null;
  byId("mfu").textContent = percent(status.mfu);
  byId("step").textContent = duration(status.step_seconds);
  show("loss", status.loss);
  show("norm", status.gradient_norm);
  byId("reading").textContent = reading(status);
  drawChart(status.trace);
  drawPath(status.critical_path);
  drawDiagnosis(status.diagnosis, status.undiagnosed);
  list("active", status.faults.map(activeFault), "none active");
  await drawDrill(status.practice);
  list(
    "alerts",
    status.alerts.map(alertItem),
    "none firing",
  );
}

async function offerFaults() {
  const { faults } = await (await fetch("/faults/catalogue")).json();
  for (const fault of faults) {
    const button = element("button", fault.name, { id: fault.name, onclick: () => start(fault.name) });
    button.append(element("small", `${targetText(fault.default_target)}, severity ${fault.severity.plain}. ${fault.description}`));
    byId("buttons").append(button);
  }
  // A dashboard's link names a fault after the #: show its button.
  document.getElementById(location.hash.slice(1))?.focus();
  byId("buttons").append(
    element("button", "Stop all faults", { onclick: () => change("/faults", { method: "DELETE", headers: action }) }),
  );
}

byId("begin-drill").onclick = beginDrill;
byId("reveal").onclick = revealDrill;
refresh();
setInterval(refresh, 1000);
