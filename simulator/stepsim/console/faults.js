// Faults and scenarios: what there is, how hard and on whom, what is active and for how long still.

import { byId, clockTime, element, left, number, redraw, targetText } from "./dom.js";
import { change } from "./lab.js";

export class Faults {
  constructor() {
    this.catalogue = [];
    this.opened = null;
    this.secret = false;
    byId("fault-filter").oninput = () => this.list();
    byId("fault-filter").onkeydown = (event) => {
      if (event.key !== "Escape") return;
      event.target.value = "";
      this.list();
    };
    byId("stop-all").onclick = () => change("DELETE", "/faults");
  }

  async open(opening) {
    const [catalogue, scenarios] = await Promise.all(["/faults/catalogue", "/scenarios"].map(async (path) => (await fetch(path)).json()));
    this.catalogue = catalogue.faults;
    this.job = opening.job;
    const named = location.hash.slice(1); // a dashboard's link names a fault after the #
    if (this.catalogue.some((fault) => fault.name === named)) this.opened = named;
    byId("scenarios").replaceChildren(...scenarios.map((one) => this.scenario(one)));
    byId("fault-list").dataset.shown = "";
    this.list();
    if (this.opened) byId(`fault-${this.opened}`)?.scrollIntoView({ block: "nearest" });
    this.update(opening);
  }

  update(state) {
    this.secret = state.practice.running;
    redraw(byId("active"), state.faults.map((fault) => fault.id), () => state.faults.map(active));
    for (const fault of state.faults) byId(`since-${fault.id}`).textContent = since(fault, state.now);
    byId("active").dataset.empty = this.secret ? "A blind drill is on: nobody is told." : state.blind ? "Blind: nobody is told which are active." : "None is active.";
    byId("stop-all").hidden = this.secret || (state.faults.length < 2 && !state.blind);
    for (const button of document.querySelectorAll(".starts")) button.disabled = this.secret;
  }

  list() {
    const words = byId("fault-filter").value.toLowerCase().split(/[\s_]+/);
    const found = this.catalogue.filter((fault) => words.every((word) => `${fault.name} ${fault.description}`.toLowerCase().includes(word)));
    redraw(byId("fault-list"), [this.opened, found.map((fault) => fault.name)], () => found.map((fault) => this.entry(fault)));
  }

  toggle(name) {
    this.opened = this.opened === name ? null : name;
    this.list();
    byId(`fault-${name}`).focus({ preventScroll: true });
    byId(`fault-${name}`).parentElement.scrollIntoView({ block: "nearest" });
  }

  entry(fault) {
    const open = this.opened === fault.name;
    const head = element("button", { id: `fault-${fault.name}`, type: "button", "aria-expanded": open, onclick: () => this.toggle(fault.name) }, fault.name);
    return element("li", {}, head, open ? this.form(fault) : null);
  }

  form(fault) {
    const { severity } = fault;
    const id = (part) => `${part}-${fault.name}`;
    const value = element("output", { htmlFor: id("severity") });
    const slider = element("input", { type: "range", id: id("severity"), min: 0, max: 1, step: "any", value: position(severity, severity.plain), oninput: () => tell() });
    const chosen = () => rounded(severity, at(severity, Number(slider.value)));
    const tell = () => {
      value.textContent = number(chosen());
      slider.setAttribute("aria-valuetext", `${number(chosen())}: ${severity.meaning}`);
    };
    tell();
    const levels = ["mild", "plain", "severe"].map((level) =>
      element("button", { type: "button", onclick: () => { slider.value = position(severity, severity[level]); tell(); } }, `${level} ${number(severity[level])}`));
    const target = this.targets(fault, id("target"));
    const ramp = choice(id("ramp"), [["", "none"], ["30s", "30 s"], ["2m", "2 min"], ["5m", "5 min"]]);
    const lasts = choice(id("duration"), [["", "until stopped"], ["2m", "2 min"], ["5m", "5 min"], ["15m", "15 min"], ["1h", "1 h"]]);
    const request = () => ({
      fault: fault.name, severity: chosen(), target: JSON.parse(target.value),
      ...(ramp.value && { ramp: ramp.value }), ...(lasts.value && { duration: lasts.value }),
    });
    const single = severity.mild === severity.severe;
    return element("form", { className: "form", onsubmit: (event) => { event.preventDefault(); change("POST", "/faults", request()); } },
      element("p", {}, fault.description),
      element("label", { htmlFor: id("target") }, "Strikes"), target,
      ...(single ? [] : [
        element("label", { htmlFor: id("severity") }, "Severity"), element("div", { className: "row" }, slider, value),
        element("p", { className: "small dim" }, severity.meaning),
        element("div", { className: "levels wide" }, ...levels)]),
      element("label", { htmlFor: id("ramp") }, "Grows over"), ramp,
      element("label", { htmlFor: id("duration") }, "Lasts"), lasts,
      element("button", { className: "primary wide starts", disabled: this.secret }, `Start ${fault.name}`));
  }

  /** Every rank and node that it may strike; the catalogue's default is chosen. */
  targets(fault, id) {
    const every = { rank: range(this.job.ranks).map((rank) => ({ rank })), node: range(this.job.nodes).map((node) => ({ node: `node-${node}` })), run: [{ run: true }] };
    const options = fault.targets.flatMap((kind) => every[kind]);
    const plain = JSON.stringify(fault.default_target);
    if (!options.some((target) => JSON.stringify(target) === plain)) options.unshift(fault.default_target);
    return element("select", { id }, ...options.map((target) =>
      element("option", { value: JSON.stringify(target), selected: JSON.stringify(target) === plain }, targetText(target))));
  }

  scenario(one) {
    const parts = one.faults.map((fault) => fault.fault).join(" and ");
    const start = element("button", { type: "button", className: "starts", "aria-label": `Start ${one.title}`, onclick: () => change("POST", "/scenarios", { scenario: one.name }) }, "Start");
    return element("li", { className: "row" }, element("div", {}, element("b", {}, one.title), element("div", { className: "small dim" }, `${one.description} (${parts})`)), start);
  }
}

function active(fault) {
  const text = element("div", {}, element("b", {}, fault.fault), ` on ${targetText(fault.target)}, severity ${number(fault.severity)}`,
    element("div", { className: "small dim", id: `since-${fault.id}` }));
  return element("li", { className: "row" }, text,
    element("button", { type: "button", className: "danger", "aria-label": `Stop ${fault.fault} on ${targetText(fault.target)}`, onclick: () => change("DELETE", `/faults/${fault.id}`) }, "Stop"));
}

function since(fault, now) {
  const growing = now < fault.started + fault.ramp_seconds ? ", still growing" : "";
  return `since ${clockTime(fault.started)}${growing}; ${remaining(fault, now)}`;
}

const remaining = (fault, now) => (fault.duration_seconds === null ? "until stopped" : `${left(Math.max(0, fault.started + fault.duration_seconds - now))} left`);
const range = (count) => Array.from({ length: count }, (_, index) => index);
const choice = (id, options) => element("select", { id }, ...options.map(([value, text]) => element("option", { value }, text)));

// A slider's way from neutral to well beyond severe: in equal factors where the scale spans more than ten.
function bounds(severity) {
  const values = [severity.neutral, severity.mild, severity.plain, severity.severe];
  const beyond = severity.severe >= severity.neutral ? 1.5 * severity.severe : severity.severe / 1.5;
  const ends = [...values, Math.min(severity.high, Math.max(severity.low, beyond))];
  return [Math.max(severity.low, Math.min(...ends)), Math.min(severity.high, Math.max(...ends))];
}
const inFactors = ([low, high]) => low > 0 && high / low > 10;
function at(severity, share) {
  const [low, high] = bounds(severity);
  return inFactors([low, high]) ? low * (high / low) ** share : low + share * (high - low);
}
function position(severity, value) {
  const [low, high] = bounds(severity);
  return inFactors([low, high]) ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low || 1);
}
/** To three digits, and never beyond the ends. */
const rounded = (severity, value) => Math.min(severity.high, Math.max(severity.low, Number(value.toPrecision(3))));
