"""The committed dashboards, their panels and queries."""

from queries import FOLDER, committed, panels_of, queries_of

FILES = sorted(FOLDER.glob("*.json"))
DASHBOARDS = committed()
PANELS = [(name, panel) for name, dashboard in DASHBOARDS.items() for panel in panels_of(dashboard)]
QUERIES = [(panel["title"], expr) for _, panel in PANELS for expr in queries_of(panel)]
BY_NAME = {f"{name}: {panel['title']}": panel for name, panel in PANELS if "targets" in panel}

ALTERNATIVES = (
    "mirage: Who holds everyone up", "ranks: Who holds everyone up", "step: What the average rank does", "mirage: Diagnosis",
)  # fmt: skip
"""Panels of whose queries one answers where another does not."""
EMPTY_IN_HEALTH = {
    "mirage: Alerts firing": "straggler",
    "practice: The truth, and below it what the rules say": "straggler",
    "practice: Fault minutes that were caught": "straggler",
    "practice: Alert minutes that were right": "straggler",
    "practice: By cause, in minutes of this range": "straggler",
    "practice: Your rules": "trouble",
    "practice: Your rules firing now": "trouble",
    "practice: Last blind drill": "trouble",
    "practice: Its score, taken apart": "trouble",
    "practice: Its incidents, and what told them": "trouble",
    "gpus: Throttled, unlike the other GPUs": "trouble",
    "gpus: PCIe links below the others": "trouble",
    "gpus: XID errors": "trouble",
    "exporter: Overhead per step": "trouble",
    "exporter: Overhead per step, mean": "trouble",
    "exporter: Collectors": "trouble",
    "exporter: What failed": "trouble",
    "exporter: Targets down": "trouble",
}
"""Panels without data in a healthy simulated job, where they say so in words, and the fault with which they have some;
trouble is what the simulator never has, or has only once somebody has practised."""
