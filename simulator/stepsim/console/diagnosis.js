// The diagnosis in words. What it says is worded by the server.

import { byId, capital, clockTime, element, number, percent, phaseText, redraw, targetText } from "./dom.js";

const opened = new Set(); // whose evidence is being read

/** For how many seconds no step has ended, where that is unusual; else null. */
export function standing(state) {
  const still = state.lap_ended === null ? 0 : state.now - state.lap_ended;
  return still > Math.max(5, 4 * (state.step_seconds ?? 0)) ? still : null;
}

/** What the last half minute shows, without Prometheus. */
export function reading(state) {
  if (typeof state.loss === "string") return "The loss is not a number: nothing that follows is of use.";
  if (standing(state) !== null) return "No step ends any more: all wait for one that does not arrive.";
  if (!state.critical_path) return "Not enough steps yet.";
  const { culprit } = state;
  if (culprit) {
    const who = "rank" in culprit ? `Rank ${culprit.rank}` : culprit.node;
    return `${who} holds everyone up, mostly in ${phaseText(culprit.phase)}: it costs ${percent(culprit.share)} of all time.`;
  }
  const data = state.critical_path.data_wait;
  if (data > 0.15) return `Data wait is ${percent(data)} of the critical path, and no single rank or node is to blame.`;
  return "No single culprit.";
}

export function drawDiagnosis(state) {
  const report = state.diagnosis;
  byId("diagnosis").textContent = diagnosed(report, state.undiagnosed);
  byId("missing").textContent = report?.missing.length ? `Could not be looked at: ${report.missing.join("; ")}.` : "";
  const verdicts = report?.verdicts ?? [];
  redraw(byId("verdicts"), verdicts, () => verdicts.map(verdictItem), verdicts.map((one) => [one.fault, one.target]));
}

function diagnosed(report, why) {
  if (!report) return capital(why);
  const at = clockTime(report.at);
  const found = report.verdicts.length;
  if (found) return `${found === 1 ? "One thing is" : `${found} things are`} wrong, as of ${at}.`;
  const suspected = report.suspicions.map((one) => `${one.fault}: ${targetText(one.target)}`).join("; ");
  if (suspected) return `Not certain yet, as of ${at}: ${suspected}.`;
  return report.healthy ? `Healthy: nothing was found that is wrong, as of ${at}.` : `Not enough data to tell, as of ${at}.`;
}

function verdictItem(verdict) {
  const cost = ` costs ${number(verdict.lost_gpus)} GPUs, confidence ${percent(verdict.confidence)}. `;
  return element("li", {}, element("b", {}, `${verdict.fault}: ${targetText(verdict.target)}`), cost, verdict.summary, " ",
    element("a", { href: `/runbooks/${encodeURIComponent(verdict.runbook)}` }, `Runbook ${verdict.runbook}`), grounds(verdict));
}

function grounds(verdict) {
  const key = `${verdict.fault} ${targetText(verdict.target)}`;
  const details = element("details", { open: opened.has(key) });
  details.ontoggle = () => (details.open ? opened.add(key) : opened.delete(key));
  const lines = verdict.evidence.map((one) => element("li", {}, `${one.what}: ${one.shown} (healthy: ${one.healthy})`, element("code", {}, one.query)));
  const others = verdict.ruled_out.map((other) => element("li", {}, `not ${other.fault}: ${other.evidence.what} ${other.evidence.shown} (healthy: ${other.evidence.healthy})`));
  details.append(element("summary", {}, "Evidence, and what it is not"), element("ul", {}, ...lines, ...others));
  return details;
}

export function drawAlerts(state) {
  redraw(byId("alerts"), state.alerts.map((alert) => [alert.labels, alert.startsAt]), () => state.alerts.map(alertItem));
}

function alertItem(alert) {
  const { alertname, severity } = alert.labels;
  const name = element("a", { href: `/runbooks/${encodeURIComponent(alertname)}` }, alertname);
  const since = Date.parse(alert.startsAt) / 1000;
  const kind = element("span", { className: severity === "page" ? "page small" : "dim small" }, ` ${severity ?? ""}${since ? `, since ${clockTime(since)}` : ""}`);
  return element("li", {}, name, kind, element("div", {}, alert.annotations?.summary ?? ""));
}
