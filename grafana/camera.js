// What is on the page: its height, what it complains of, and every panel. Grafana 9 names its parts by class, later ones
// by test id (packages/grafana-e2e-selectors in its sources).
const PANEL = 'section.panel-container, section[data-testid^="data-testid Panel header "]';
const CONTENT = '.panel-content, [data-testid="data-testid panel content"]';
const LOADING = '.panel-loading, [aria-label="Panel loading bar"]';
const ALERT = '[data-testid="data-testid Alert error"]';
const ERROR = `.panel-info-corner--error, [data-testid="data-testid Panel status error"], ${ALERT}`;

const title = (panel) =>
  panel.getAttribute("aria-label")?.replace(/ panel$/, "") ?? panel.dataset.testid.replace("data-testid Panel header ", "");

const painted = (canvas) => {
  const context = canvas.width && canvas.height ? canvas.getContext("2d") : null;
  return !context || context.getImageData(0, 0, canvas.width, canvas.height).data.some((byte) => byte);
};

const look = (panel) => {
  const content = panel.querySelector(CONTENT);
  const text = content?.innerText.trim() ?? "";
  const filled = text !== "" || content?.querySelector("canvas, svg, img");
  const canvases = [...(content?.querySelectorAll("canvas") ?? [])]; // Grafana 9 lays an empty one over a gauge
  const loading = panel.querySelector(LOADING) || text.startsWith("Loading plugin panel");
  const drawn = Boolean(filled) && !loading && (!canvases.length || canvases.some(painted));
  const error = panel.querySelector(ERROR) !== null;
  return { title: title(panel), text, error, drawn: drawn || error };
};

// Whatever scrolls around the panels: the document, or a container in it.
const height = (inside) => {
  let most = 0;
  for (let box = inside; box; box = box.parentElement) {
    const scrolls = box === document.documentElement || /auto|scroll/.test(getComputedStyle(box).overflowY);
    if (scrolls) most = Math.max(most, box.scrollHeight - box.clientHeight);
  }
  return innerHeight + most;
};

const panels = [...document.querySelectorAll(PANEL)];
const alerts = [...document.querySelectorAll(ALERT)].filter((alert) => !alert.closest(PANEL));
return {
  height: height(panels[0]?.parentElement),
  alerts: alerts.map((alert) => alert.innerText),
  panels: panels.map(look),
};
