// What follows from a lap: its segments in order of time, its barrier, and who came last.

import { capital, percent } from "./dom.js";

// A lap runs from one exit of the collective to the next: first what comes after it, then what leads to the next one.
const ORDER = ["optimizer", "checkpoint", "other", "data_wait", "h2d", "forward", "backward", "waiting", "allreduce"];

/** ``lap`` as it came: milliseconds by phase and row. All rows end together; who waits least in the collective came last. */
export function understood(lap, phases) {
  const of = Object.fromEntries(phases.map((phase, index) => [phase, lap.milliseconds[index]]));
  const transfer = Math.min(...of.allreduce);
  const waiting = of.allreduce.map((value) => value - transfer);
  const rows = lap.rows.map((name, row) => {
    const parts = ORDER.map((phase) => [phase, phase === "waiting" ? waiting[row] : phase === "allreduce" ? transfer : of[phase][row]]);
    return { name, rank: lap.ranks[row], parts, total: parts.reduce((sum, [, value]) => sum + value, 0) };
  });
  const total = Math.max(...rows.map((row) => row.total));
  const last = waiting.indexOf(Math.min(...waiting));
  return { step: lap.step, rows, total, transfer, barrier: total - transfer, last, typicalWait: lap.median_wait_milliseconds };
}

/** A row's name, and in a larger job the rank that it is about. */
export const whose = (row) => (row.name === `rank ${row.rank}` ? row.name : `rank ${row.rank} of ${row.name}`);

/** In one sentence. */
export function told(lap) {
  const length = `Step ${lap.step}: ${lap.total.toFixed(lap.total < 100 ? 1 : 0)} ms`;
  if (lap.rows.length === 1) return `${length}, and nobody to wait for.`;
  const last = capital(whose(lap.rows[lap.last]));
  const waits = lap.typicalWait / lap.total;
  if (waits < 0.02) return `${length}. ${last} came last, and hardly anybody waited.`;
  return `${length}. ${last} came last: the others waited ${lap.typicalWait.toFixed(0)} ms for it (median), ${percent(waits, 0)} of the step.`;
}
