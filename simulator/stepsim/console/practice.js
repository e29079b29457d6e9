// Blind drills: begins one, hides what strikes while it is on, and shows what it was once it is revealed.

import { byId, element, left, targetText } from "./dom.js";
import { change } from "./lab.js";

let resultDrawn = false;

export function beginPractice() {
  byId("begin-drill").onclick = () => change("POST", "/practice", {});
  byId("reveal").onclick = () => change("POST", "/practice/reveal");
}

function told(practice) {
  if (practice.running) {
    return "A blind drill is on. Nothing tells which faults are active; diagnosis and alerts know what the metrics show, and no more.";
  }
  return practice.state === "over" ? "The blind drill is over. What happened is not told yet." : "";
}

export async function drawDrill(practice) {
  const none = practice.state === "none";
  const on = practice.running || practice.state === "over";
  byId("drill").hidden = !on;
  if (byId("drill-text").textContent !== told(practice)) byId("drill-text").textContent = told(practice);
  byId("drill-left").textContent = practice.running ? `${left(practice.seconds_left)} left, ${practice.alerts_received} alerts received.` : "";
  byId("drill-commitment").textContent = on ? `commitment ${practice.commitment}` : "";
  byId("drills").hidden = practice.state === "impossible";
  byId("drill-offer").hidden = !none;
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
    ? `${result.grade.score.toFixed(0)} of 100 points for ${result.rules === "yours" ? "your rules" : "the lab's rules"}: ` +
      `${result.grade.told} of ${result.grade.incidents} told, ${result.grade.false_alarms} false alarms.`
    : `No score, for ${result.ungraded}.`;
  byId("drill-incidents").replaceChildren(...result.incidents.map(incident), ...result.false_alarms.map(falseAlarm));
}

const at = (seconds) => `${Math.floor(seconds / 60)}:${String(Math.round(seconds) % 60).padStart(2, "0")}`;

function incident(one) {
  const verdict = one.verdict === "told" ? `told by ${one.alert} after ${one.delay_seconds} s` : one.verdict;
  return element("li", {}, `${at(one.begins_seconds)} to ${at(one.ends_seconds)}: ${one.fault} on ${targetText(one.target)}, severity ${one.severity}: ${verdict}`);
}

const falseAlarm = (one) => element("li", {}, `${at(Math.max(0, one.begins_seconds))}: ${one.alert}: a false alarm`);
