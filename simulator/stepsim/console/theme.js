// Light or dark: as the system says, or as was chosen here. Whoever draws on a canvas listens to "theme".

import { byId } from "./dom.js";

const KEY = "stepscope-theme";
const system = window.matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (document.documentElement.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";

function apply(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  byId("theme").textContent = isDark() ? "Light" : "Dark";
  window.dispatchEvent(new Event("theme"));
}

function kept() {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null; // storage is forbidden: then the choice lasts as long as the page
  }
}

export function beginTheme() {
  byId("theme").onclick = () => {
    const theme = isDark() ? "light" : "dark";
    try {
      localStorage.setItem(KEY, theme);
    } catch {
      // as above
    }
    apply(theme);
  };
  system.addEventListener("change", () => apply(null));
  apply(kept());
}
