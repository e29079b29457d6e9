// Axes that look alike on all charts.

import { colour } from "./dom.js";

export const axis = () => ({ stroke: colour("dim"), grid: { stroke: colour("edge"), width: 1 }, ticks: { stroke: colour("edge"), width: 1 } });

/** Numbers of GPUs, at these. */
export const gpusAxis = (at) => ({ ...axis(), splits: () => at, values: (_, marks) => marks.map((gpus) => (gpus >= 1024 ? `${gpus / 1024}k` : gpus)) });

/** Ratios, as percentages. */
export const percentAxis = () => ({ ...axis(), size: 54, values: (_, marks) => marks.map((mark) => `${Math.round(100 * mark)} %`) });
