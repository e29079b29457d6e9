// A calculator: its fields, the page's address, and the server's answer say the same thing.

import { byId, element, redraw } from "./dom.js";

const PATIENCE_MS = 60;

export class Calculator {
  /** ``fields``: name, label and how each is entered; those that are ``kept`` are no part of an experiment. ``draw`` gets what
   * ``path`` answers to the page's query. */
  constructor({ path, fields, draw }) {
    const kept = fields.filter((field) => field.kept).map((field) => field.name);
    Object.assign(this, { path, fields, kept, drawAnswer: draw, asked: 0, timer: null, inputs: {} });
    byId("inputs").append(...fields.map((field) => this.field(field)));
    byId("inputs").onsubmit = (event) => event.preventDefault();
    window.addEventListener("popstate", () => this.read());
    window.addEventListener("theme", () => this.answer && draw(this.answer));
    window.addEventListener("resize", () => this.answer && draw(this.answer));
    this.read();
  }

  field(field) {
    const input = this.made(field);
    this.inputs[field.name] = input;
    input.oninput = () => this.changed(field, input.value);
    const label = element("label", { htmlFor: input.id }, field.label);
    if (field.kind !== "range") return element("div", { className: "field" }, label, input);
    // A slider for the hand, and a number for what is exact: the number is the field.
    const slider = element("input", { type: "range", min: 0, max: steps(field), step: 1, "aria-label": field.label });
    slider.oninput = () => {
      input.value = valueAt(field, slider.value / steps(field));
      slider.setAttribute("aria-valuetext", input.value);
      this.changed(field, input.value);
    };
    input.slider = slider;
    return element("div", { className: "field" }, label, input, slider);
  }

  made({ kind, name, options, min, max, step }) {
    if (kind === "select") return element("select", { id: name, name }, ...options.map(([value, text]) => element("option", { value }, text)));
    if (kind === "text") return element("input", { type: "text", id: name, name, autocomplete: "off" });
    return element("input", { type: "number", id: name, name, min: min ?? "", max: max ?? "", step: step ?? "any" });
  }

  /** The address is the state: it can be sent to somebody. */
  changed(field, value) {
    this.place(field, value);
    const query = new URLSearchParams(location.search);
    if (value === "") query.delete(field.name);
    else query.set(field.name, value);
    history.replaceState(null, "", query.size ? `?${query}` : location.pathname);
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.ask(), PATIENCE_MS);
  }

  /** Another question altogether, such as an experiment's. */
  go(values) {
    const kept = [...new URLSearchParams(location.search)].filter(([name]) => this.kept.includes(name));
    const query = new URLSearchParams([...Object.entries(values), ...kept]);
    history.pushState(null, "", query.size ? `?${query}` : location.pathname);
    this.read();
  }

  /** The same question with some fields changed. */
  also(values) {
    const query = new URLSearchParams(location.search);
    for (const [name, value] of Object.entries(values)) query.set(name, value);
    history.pushState(null, "", `?${query}`);
    this.read();
  }

  read() {
    for (const field of this.fields) this.inputs[field.name].value = "";
    for (const [name, value] of new URLSearchParams(location.search)) if (this.inputs[name]) this.inputs[name].value = value;
    this.ask();
  }

  async ask() {
    const number = ++this.asked;
    let answer;
    try {
      const response = await fetch(`${this.path}${location.search}`);
      answer = await response.json();
      if (number !== this.asked) return; // a later question is on its way
      this.tell(response.ok ? "" : `${answer.error}.`);
      if (!response.ok) answer = this.answer ? null : await (await fetch(this.path)).json(); // the usual ones, to begin with
    } catch {
      if (number === this.asked) this.tell("The lab does not answer.");
      return;
    }
    if (answer) this.show(answer);
  }

  /** What is wrong with what was asked; the numbers are then of something else, and look it. */
  tell(wrong) {
    const others = this.answer ? "The numbers are those of the last question that made sense." : "The numbers are the usual ones.";
    byId("error").textContent = wrong && `${wrong[0].toUpperCase()}${wrong.slice(1)} ${others}`;
    document.querySelector("main").classList.toggle("stale", Boolean(wrong));
    for (const [name, input] of Object.entries(this.inputs)) input.setAttribute("aria-invalid", wrong.startsWith(`${name}:`));
  }

  show(answer) {
    this.answer = answer;
    const hidden = [...new URLSearchParams(location.search)].filter(([name]) => !this.inputs[name]);
    redraw(byId("also"), hidden, () => hidden.map(([name, value]) =>
      element("button", { type: "button", onclick: () => this.changed({ name }, "") }, `also asked: ${name}=${value} ✕`)));
    this.offer(answer.experiments);
    for (const field of this.fields) this.fill(field, answer.question[field.name]);
    this.drawAnswer(answer);
  }

  /** Questions to begin with, and what to notice in the one that is asked. */
  offer(experiments) {
    const asked = query([...new URLSearchParams(location.search)].filter(([name]) => !this.kept.includes(name)));
    const chosen = experiments.find((one) => query(Object.entries(one.question)) === asked);
    byId("notice").textContent = chosen?.notice ?? "Choose one, or change anything. The address of this page holds all of it.";
    redraw(byId("experiments"), [experiments, chosen?.name], () => experiments.map((one) =>
      element("button", { type: "button", "aria-pressed": one === chosen, onclick: () => this.go(one.question) }, one.name)));
  }

  fill(field, value) {
    const input = this.inputs[field.name];
    if (document.activeElement !== input) input.value = value ?? "";
    this.place(field, input.value);
  }

  place(field, value) {
    const slider = this.inputs[field.name]?.slider;
    if (!slider || document.activeElement === slider) return;
    slider.value = Math.round(steps(field) * shareOf(field, Number(value)));
    slider.setAttribute("aria-valuetext", value);
  }
}

function query(values) {
  const sorted = new URLSearchParams(values);
  sorted.sort();
  return sorted.toString();
}

/** So many that one is a step of the field: a power of two, a unit, or a hundredth of the way in factors. */
function steps({ min, max, step = 1, factors, powers }) {
  if (powers) return Math.round(Math.log2(max / min));
  return factors ? 100 : Math.round((max - min) / step);
}

// Where a value is on its slider: in equal factors if the field says so.
const shareOf = ({ min, max, factors }, value) => (factors ? Math.log(Math.max(value, min) / min) / Math.log(max / min) : (value - min) / (max - min));

function valueAt({ min, max, factors, step = 1, powers }, share) {
  const raw = factors ? min * (max / min) ** share : min + share * (max - min);
  if (powers) return 2 ** Math.round(Math.log2(raw));
  return Number((Math.round(raw / step) * step).toPrecision(6));
}
