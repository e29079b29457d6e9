// What the page asks the lab to change; the answer's error is shown where people look for it.

import { byId } from "./dom.js";

const ACTION = { "X-Stepscope-Action": "console" };

/** True where it was done. */
export async function change(method, path, body) {
  byId("error").textContent = "";
  const json = body === undefined ? {} : { headers: { ...ACTION, "Content-Type": "application/json" }, body: JSON.stringify(body) };
  try {
    const answer = await fetch(path, { method, headers: ACTION, ...json });
    if (!answer.ok) byId("error").textContent = (await answer.json()).error;
    return answer.ok;
  } catch {
    byId("error").textContent = "The lab does not answer: nothing was changed.";
    return false;
  }
}
