"use strict";
// Draws the diagnosis in /status. What it says is worded by the server.

const opened = new Set(); // whose evidence is being read: the list is drawn anew with every report

function drawDiagnosis(report, undiagnosed) {
  byId("diagnosis").textContent = diagnosisText(report, undiagnosed);
  byId("missing").textContent = report?.missing.length ? `Could not be looked at: ${report.missing.join("; ")}.` : "";
  const at = String(report?.at);
  if (byId("verdicts").dataset.at === at) return;
  byId("verdicts").dataset.at = at;
  byId("verdicts").replaceChildren(...(report?.verdicts ?? []).map(verdictItem));
}

function diagnosisText(report, undiagnosed) {
  if (!report) return `${undiagnosed[0].toUpperCase()}${undiagnosed.slice(1)}`;
  const at = new Date(1000 * report.at).toLocaleTimeString();
  const found = report.verdicts.length;
  if (found) return `${found === 1 ? "1 thing is" : `${found} things are`} wrong, as of ${at}.`;
  if (report.healthy) return `Healthy: nothing was found that is wrong, as of ${at}.`;
  return `Not enough data to tell, as of ${at}.`;
}

function verdictItem(verdict) {
  const item = element("li", "");
  const cost = `costs ${number(verdict.lost_gpus)} GPUs, confidence ${percent(verdict.confidence)}. `;
  item.append(
    element("b", `${verdict.fault}: ${targetText(verdict.target)}`),
    `, ${cost}${verdict.summary} `,
    element("a", "Runbook", { href: `/runbooks/${encodeURIComponent(verdict.runbook)}` }),
    grounds(verdict),
  );
  return item;
}

function grounds(verdict) {
  const key = `${verdict.fault} ${targetText(verdict.target)}`;
  const details = element("details", "", { open: opened.has(key) });
  details.ontoggle = () => (details.open ? opened.add(key) : opened.delete(key));
  const list = element("ul", "");
  for (const one of verdict.evidence) {
    const line = element("li", `${one.what}: ${one.shown} (healthy: ${one.healthy})`);
    line.append(element("code", one.query));
    list.append(line);
  }
  for (const other of verdict.ruled_out) list.append(element("li", `not ${other.fault}: ${other.evidence.what} ${other.evidence.shown} (healthy: ${other.evidence.healthy})`));
  details.append(element("summary", "Evidence, and what it is not"), list);
  return details;
}
