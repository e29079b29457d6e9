// The all-reduce, step by step: which piece of the gradients every GPU sends, and how many steps that takes.

/** A sum over n GPUs: ``held[gpu][piece]`` is the set of GPUs whose share of the piece is in there. */
export function start(n) {
  return Array.from({ length: n }, (_, gpu) => Array.from({ length: n }, () => new Set([gpu])));
}

/** Ring: 2(n − 1) steps; in each, every GPU sends 1/n of the data to the next one. First sums travel, then results. */
export function ring(n) {
  const gpus = Array.from({ length: n }, (_, gpu) => gpu);
  return Array.from({ length: 2 * (n - 1) }, (_, step) => {
    const gathering = step >= n - 1;
    const sends = gpus.map((gpu) => ({ from: gpu, to: (gpu + 1) % n, pieces: [(gpu - step + 2 * n) % n] }));
    return { phase: gathering ? "all-gather: results travel" : "reduce-scatter: sums travel", sends: sends.map((send) => ({ ...send, pieces: gathering ? [(send.from + 1 - (step - (n - 1)) + 2 * n) % n] : send.pieces })) };
  });
}

/** One binomial tree: up to the root and down again, in 2·⌈log2 n⌉ steps. The root sends all of the data in each step down; NCCL
 * has two trees that share it out. */
export function tree(n) {
  const pieces = Array.from({ length: n }, (_, piece) => piece);
  const levels = [];
  for (let distance = 1; distance < n; distance *= 2) {
    const sends = [];
    for (let gpu = distance; gpu < n; gpu += 2 * distance) sends.push({ from: gpu, to: gpu - distance, pieces });
    levels.push(sends);
  }
  const down = [...levels].reverse().map((sends) => sends.map(({ from, to }) => ({ from: to, to: from, pieces })));
  return [
    ...levels.map((sends) => ({ phase: "reduce: sums go up", sends })),
    ...down.map((sends) => ({ phase: "broadcast: results go down", sends })),
  ];
}

/** What every GPU holds after a step: all sends of it happen at once. */
export function after(held, step) {
  const next = held.map((pieces) => pieces.map((piece) => new Set(piece)));
  for (const { from, to, pieces } of step.sends) for (const piece of pieces) for (const gpu of held[from][piece]) next[to][piece].add(gpu);
  return next;
}

/** Bytes that the busiest GPU has sent in the first so many steps, as a share of the data. */
export function sent(steps, count, n) {
  const shares = Array(n).fill(0);
  for (const { sends } of steps.slice(0, count)) for (const { from, pieces } of sends) shares[from] += pieces.length / n;
  return Math.max(...shares);
}
