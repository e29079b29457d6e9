"""A headless Chromium that takes pictures of Grafana's pages, and says what a person would see is wrong with them."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.common.exceptions import TimeoutException, WebDriverException
from selenium.webdriver.chrome.service import Service

PAGE_SECONDS = 60.0
"""After this time a page's picture is taken as it is."""
QUIET_SECONDS = 1.5
POLL_SECONDS = 0.25
TALLEST = 10_000
FLAGS = ("headless=new", "disable-dev-shm-usage", "hide-scrollbars", "lang=en-US", "no-first-run", "disable-sync",
         "disable-background-networking", "disable-component-update")  # fmt: skip
SEE = (Path(__file__).parent / "camera.js").read_text(encoding="utf-8")
EMPTY = re.compile(
    r"no data( (found )?in response)?|data is missing .*|data does not have .*|cannot visualize data", re.I
)

Size = tuple[int, int]
Seen = dict[str, Any]
"""What ``camera.js`` returns."""
Problems = list[str]
Camera = Callable[[str, int, Path], Problems]
"""Takes the picture of a URL with so many panels, into a file."""


class Missing(Exception):
    """What has to be there is not; says what would be right."""


@contextmanager
def chromium(size: Size) -> Iterator[Camera]:
    """The system's own browser: nothing is downloaded, and nothing reported."""
    paths = {name: shutil.which(name) or "" for name in ("chromium", "chromedriver")}
    if missing := [name for name, path in paths.items() if not path]:
        raise Missing(f"not on PATH: {', '.join(missing)}. On Debian: apt-get install chromium chromium-driver")
    os.environ.update(SE_AVOID_STATS="true", SE_OFFLINE="true")
    options = webdriver.ChromeOptions()
    options.binary_location = paths["chromium"]
    for flag in (*FLAGS, *(["no-sandbox"] if os.geteuid() == 0 else [])):  # root cannot have the sandbox
        options.add_argument(f"--{flag}")
    # Ctrl-C reaches the terminal's whole session. In one of its own the driver lives on, and can be told to quit.
    service = Service(paths["chromedriver"], popen_kw={"start_new_session": True})
    try:
        driver = webdriver.Chrome(options, service)
    except WebDriverException as error:
        raise Missing(f"chromium does not start: {error.msg}\nAre chromium and chromedriver of one version?") from None
    try:
        driver.set_page_load_timeout(PAGE_SECONDS)
        yield lambda url, panels, file: photograph(driver, size, url, panels, file)
    finally:
        driver.quit()


def photograph(driver: webdriver.Chrome, size: Size, url: str, panels: int, file: Path) -> Problems:
    """The whole page, however tall: Grafana draws a panel only once it is in view."""
    resize(driver, *size)
    with suppress(TimeoutException):
        driver.get(url)
    seen = watch(driver, size, panels)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(driver.get_screenshot_as_png())
    return problems(seen, panels, size[1])


def watch(driver: webdriver.Chrome, size: Size, panels: int) -> Seen:
    """What is on the page once it is drawn and has been quiet for a while, or when its time is up."""
    until, height, quiet = time.monotonic() + PAGE_SECONDS, size[1], 0.0
    seen: Seen = driver.execute_script(SEE)
    while quiet < QUIET_SECONDS and time.monotonic() < until:
        time.sleep(POLL_SECONDS)
        before, seen = seen, driver.execute_script(SEE)
        quiet = quiet + POLL_SECONDS if seen == before and not unfinished(seen, panels) else 0.0
        if height < seen["height"] <= TALLEST:
            height = seen["height"]
            resize(driver, size[0], height)
    return seen


def resize(driver: webdriver.Chrome, width: int, height: int) -> None:
    """The page's own size: a window's would include the browser's bars."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def unfinished(seen: Seen, panels: int) -> Problems:
    """Why the page is not drawn yet."""
    there = len(seen["panels"])
    absent = [f"only {there} of {panels} panels appeared in time"] if there < panels else []
    return absent + [f"{panel['title']}: not drawn in time" for panel in seen["panels"] if not panel["drawn"]]


def problems(seen: Seen, panels: int, height: int) -> Problems:
    """What a person would want to know about a picture."""
    alerts = [f"the page says: {' '.join(alert.split()):.200}" for alert in seen["alerts"]]
    found = [f"{panel['title']}: {what}" for panel in seen["panels"] if (what := complaint(panel))]
    scrolls = [f"needs scrolling: {seen['height']} px of {height}"] if seen["height"] > height else []
    return alerts + unfinished(seen, panels) + found + scrolls


def complaint(panel: Seen) -> str | None:
    """What a panel shows in place of data."""
    if panel["error"]:
        return "error"
    return next((line for line in map(str.strip, panel["text"].splitlines()) if EMPTY.fullmatch(line)), None)
