"""Takes a picture of every dashboard of a running Grafana, healthy and during each main fault, and a contact sheet.

It needs a running lab, Grafana over it, and Debian's chromium and chromium-driver. Run: make pictures.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from html import escape
from math import ceil
from pathlib import Path
from typing import Any
from urllib.parse import quote

import requests
from rich.console import Console
from rich.markup import escape as plain
from rich.progress import track
from rich.table import Column, Table
from selenium.common.exceptions import WebDriverException

from camera import PAGE_SECONDS, Camera, Missing, Problems, Size, chromium
from stepsim.durations import parse_duration

HEALTHY = "healthy"
STYLE = "body{font:14px sans-serif;background:#222;color:#eee}img{width:480px}td{vertical-align:top}p{color:#fb6}"
Results = dict[str, dict[str, Problems]]
"""State → dashboard → what is wrong with the picture."""
console = Console(stderr=True)


@dataclass(frozen=True)
class Options:
    out: Path
    faults: tuple[str, ...]
    dashboards: tuple[str, ...]
    range: float
    settle: float
    theme: str
    size: Size


@dataclass(frozen=True)
class Service:
    """One HTTP API, and what would be right when it does not answer."""

    name: str
    url: str
    remedy: str

    def call(self, path: str, method: str = "GET", **options: Any) -> Any:
        """The JSON that it answers; raises ``Missing``."""
        header = {"X-Stepscope-Action": "pictures"}
        try:
            answer = requests.request(method, self.url + path, headers=header, timeout=30, **options)
            if answer.ok:
                return answer.json() if answer.content else None
        except requests.JSONDecodeError:
            raise Missing(
                f"what answers at {self.url}{path} is no {self.name}, or wants a login: {self.remedy}"
            ) from None
        except requests.RequestException as error:
            raise Missing(f"no {self.name} answers at {self.url} ({type(error).__name__}): {self.remedy}") from None
        said = answer.text.strip()[:300] or answer.reason
        raise Missing(f"{self.name} at {self.url} answered {answer.status_code} to {method} {path}: {said}")


def services() -> tuple[Service, Service]:
    """Grafana and the lab, as the environment names them."""
    grafana = os.environ.get("GRAFANA_URL") or f"http://127.0.0.1:{os.environ.get('GRAFANA_PORT') or 3000}"
    lab = os.environ.get("STEPSCOPE_URL") or f"http://127.0.0.1:{os.environ.get('STEPSCOPE_PORT') or 8000}"
    return (
        Service("Grafana", grafana.rstrip("/"), "start it with 'docker compose up', or say where it is: GRAFANA_URL"),
        Service("lab", lab.rstrip("/"), "start one with 'make lab', or say where it is: STEPSCOPE_URL"),
    )


def dashboards(grafana: Service) -> tuple[str, ...]:
    """The uids of all that Grafana has with our tag, by title; else those of the files beside this one."""
    with suppress(Missing):
        found = grafana.call("/api/search?type=dash-db&tag=stepscope")
        if found:
            return tuple(item["uid"] for item in sorted(found, key=lambda item: str(item["title"])))
    files = sorted(Path(__file__).parent.glob("dashboards/*.json"))
    return tuple(json.loads(file.read_text(encoding="utf-8"))["uid"] for file in files)


def page(grafana: Service, uid: str, run: str, options: Options) -> tuple[str, int]:
    """A dashboard's URL, with the slowest refresh that it allows, for none cannot be asked for, and its panels' number."""
    dashboard = grafana.call(f"/api/dashboards/uid/{quote(uid)}")["dashboard"]
    slowest = (dashboard.get("timepicker", {}).get("refresh_intervals") or ["1d"])[-1]
    panels = sum(panel["type"] != "row" for panel in dashboard["panels"])
    query = f"kiosk&from=now-{options.range:.0f}s&to=now&refresh={slowest}&theme={options.theme}&var-run={quote(run)}"
    return f"{grafana.url}/d/{quote(uid)}?{query}", panels


@contextmanager
def fault(lab: Service, name: str, settle: float, longest: float) -> Iterator[None]:
    """Inside, the fault has been on for a while; even if this program is killed, it ends after ``longest`` seconds."""
    started = lab.call("/faults", "POST", json={"fault": name, "duration": longest})
    try:
        wait(settle, f"{name} is on")
        yield
    finally:
        lab.call(f"/faults/{started['id']}", "DELETE")


def check_faults(lab: Service, wanted: Sequence[str]) -> None:
    """Raises ``Missing`` for a fault that the lab does not have, and for any that is on already."""
    known = [known["name"] for known in lab.call("/faults/catalogue")["faults"]]
    if unknown := [name for name in wanted if name not in known]:
        raise Missing(f"the lab at {lab.url} has no fault {', '.join(unknown)}; it has {', '.join(known)}")
    if active := [active["fault"] for active in lab.call("/faults")]:
        raise Missing(
            f"already on: {', '.join(active)}. Stop it first, with 'stepscope fault stop', and let the run recover"
        )


def wait(seconds: float, what: str) -> None:
    """Sleeps behind a progress bar."""
    ticks = ceil(seconds)
    hidden = not console.is_terminal
    for _ in track(range(ticks), f"{what}, {seconds:.0f} s", console=console, transient=True, disable=hidden):
        time.sleep(seconds / ticks)


def take_all(options: Options, grafana: Service, lab: Service, camera: Camera) -> Results:
    """Every dashboard in every state; the contact sheet is written anew after each state."""
    job = lab.call("/status")["job"]
    check_faults(lab, options.faults)
    pages = {uid: page(grafana, uid, job["run"], options) for uid in options.dashboards or dashboards(grafana)}
    folder, longest = options.out / str(job["ranks"]), options.settle + len(pages) * 2 * PAGE_SECONDS
    results: Results = {}
    for state in (HEALTHY, *options.faults):
        if len(results) > 1:
            wait(options.settle, f"recovering, before {state}")
        with fault(lab, state, options.settle, longest) if state != HEALTHY else nullcontext():
            results[state] = {}
            for uid, (url, panels) in pages.items():
                file = folder / state / f"{uid}.png"
                found = results[state][uid] = photographed(camera, url, panels, file)
                console.print(f"{file}: {'; '.join(found) or 'ok'}", highlight=False, markup=False, soft_wrap=True)
        (folder / "index.html").write_text(sheet(f"{job['run']}, {job['ranks']} ranks", results), encoding="utf-8")
    return results


def photographed(camera: Camera, url: str, panels: int, file: Path) -> Problems:
    """A browser that fails at one page is that page's problem."""
    try:
        return camera(url, panels, file)
    except WebDriverException as error:
        return [f"the browser failed: {error.msg}"]


def sheet(title: str, results: Results) -> str:
    """The contact sheet: a row for each dashboard, a column for each state."""
    rows = ["<th>" + "".join(f"<th>{escape(state)}" for state in results)]
    for uid in results[HEALTHY]:
        cells = (cell(f"{quote(state)}/{quote(uid)}.png", taken[uid]) for state, taken in results.items())
        rows.append(f"<th>{escape(uid)}{''.join(cells)}")
    head = (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>'
    )
    return "\n<tr>".join([f"{head}\n<h1>{escape(title)}</h1>\n<table>", *rows]) + "\n</table>\n</html>\n"


def cell(file: str, found: Problems) -> str:
    return f'<td><a href="{file}"><img src="{file}" alt="{file}"></a><p>{"<br>".join(map(escape, found))}'


def report(results: Results) -> Table:
    """Dashboard by state."""
    table = Table(*(Column(title, overflow="fold") for title in ("dashboard", *results)), show_lines=True)
    for uid in results[HEALTHY]:
        table.add_row(uid, *(plain("\n".join(taken[uid])) or "[green]ok[/]" for taken in results.values()))
    return table


def duration(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip() not in ("", "none"))


def pixels(text: str) -> Size:
    if not (found := re.fullmatch(r"(\d{3,4})x(\d{3,4})", text)):
        raise argparse.ArgumentTypeError(f"a size is written like 1920x1080, not {text!r}")
    return int(found[1]), int(found[2])


def parse(arguments: Sequence[str] | None) -> Options:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add = parser.add_argument
    add("--out", type=Path, default=Path("build/pictures"), help="folder to write to")
    add("--faults", type=names, default="straggler,data_starvation,gradient_explosion", help="one by one; or none")
    add("--dashboards", type=names, default="", help="their uids; without it, all that have the tag stepscope")
    add("--range", type=duration, default="15m", help="time range shown, up to now")
    add("--settle", type=duration, default="100s", help="how long a fault runs before its pictures")
    add("--theme", choices=("dark", "light"), default="dark", help="of Grafana")
    add("--size", type=pixels, default="1920x1080", help="the screen that a page should fit in")
    return Options(**vars(parser.parse_args(arguments)))


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exit that stops the fault
    try:
        with chromium(options.size) as camera:
            results = take_all(options, *services(), camera)
    except (Missing, WebDriverException, OSError) as error:
        console.print(f"pictures: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        return 2
    except KeyboardInterrupt:
        return 130
    Console().print(report(results))
    return 1 if any(found for taken in results.values() for found in taken.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
