"use strict";
// Blind drills: begins one, hides what strikes while it is on, and shows what it was once it is revealed.

let resultDrawn = false;

const minutesLeft = (seconds) => (seconds < 90 ? `${Math.ceil(seconds)} s` : `${Math.round(seconds / 60)} min`);
const clock = (seconds) => `${Math.floor(seconds / 60)}:${String(Math.round(seconds) % 60).padStart(2, "0")}`;

const beginDrill = () =>
  change("/practice", { method: "POST", headers: { ...action, "Content-Type": "application/json" }, body: "{}" });

const revealDrill = () => change("/practice/reveal", { method: "POST", headers: action });

function drillText(practice) {
  if (practice.running) {
    return `A blind drill is on: ${minutesLeft(practice.seconds_left)} left, ${practice.alerts_received} alerts received. ` +
      "Nothing tells which faults are active; diagnosis and alerts know what the metrics show, and no more.";
  }
  if (practice.state === "over") return "The blind drill is over. What happened is not told yet.";
  return "";
}

async function drawDrill(practice) {
  const none = practice.state === "none";
  const on = practice.running || practice.state === "over";
  byId("drill").hidden = !on;
  byId("drill-text").textContent = drillText(practice);
  byId("drill-commitment").textContent = !on ? "" : `commitment ${practice.commitment}`;
  byId("begin-drill").hidden = !none;
  for (const button of byId("buttons").querySelectorAll("button")) button.disabled = practice.running;
  byId("active").dataset.empty = practice.running ? "" : "none active";
  byId("drill-result").hidden = !none || !practice.revealed;
  resultDrawn &&= !on;
  if (none && practice.revealed && !resultDrawn) await drawResult();
}

async function drawResult() {
  const answer = await fetch("/practice/result");
  if (!answer.ok) return;
  const result = await answer.json();
  resultDrawn = true;
  byId("drill-score").textContent = result.grade
    ? `Blind drill: ${result.grade.score.toFixed(0)} of 100 points for ${result.rules === "yours" ? "your rules" : "the lab's rules"}. ` +
      `${result.grade.told} of ${result.grade.incidents} told, ${result.grade.false_alarms} false alarms.`
    : `Blind drill: no score, for ${result.ungraded}.`;
  byId("drill-incidents").replaceChildren(...result.incidents.map(incidentItem), ...result.false_alarms.map(falseItem));
}

function incidentItem(one) {
  const told = one.verdict === "told" ? `told by ${one.alert} after ${one.delay_seconds} s` : one.verdict;
  return element("li", `${clock(one.begins_seconds)} to ${clock(one.ends_seconds)}: ${one.fault} on ${targetText(one.target)}, ` +
    `severity ${one.severity}: ${told}`);
}

const falseItem = (one) => element("li", `${clock(Math.max(0, one.begins_seconds))}: ${one.alert}: a false alarm`);
