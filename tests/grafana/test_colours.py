"""Colours that cross in a graph can be told apart, by everybody, in both themes.

Distances are CIEDE2000 (Sharma, Wu and Dalal, 2005); colour-blindness is simulated after Machado, Oliveira and Fernandes (2009),
severity 1.
"""

import re
from itertools import combinations
from math import atan2, cos, degrees, exp, hypot, radians, sin, sqrt

import numpy as np
import pytest

import meaning
from dashboard_files import BY_NAME, DASHBOARDS

VISION = {
    "normal": np.eye(3),
    "protanopia": np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]),
    "deuteranopia": np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]]),
    "tritanopia": np.array([[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]]),
}  # fmt: skip
XYZ = np.array([[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]])
WHITE = np.array([0.95047, 1.0, 1.08883])
DARK, LIGHT = "#181B1F", "#FFFFFF"
"""Behind Grafana's panels."""
APART = 20
"""A difference of 1 is just seen side by side; these are thin lines that cross."""


def linear(colour):
    """RGB without gamma."""
    parts = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def lab(colour, vision):
    seen = XYZ @ np.clip(VISION[vision] @ linear(colour), 0, 1) / WHITE
    f = np.where(seen > 216 / 24389, np.cbrt(seen), (24389 / 27 * seen + 16) / 116)
    return 116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])


def difference(first, second):
    """CIEDE2000 of two colours in L*a*b*."""
    (l1, a1, b1), (l2, a2, b2) = first, second
    mean = (hypot(a1, b1) + hypot(a2, b2)) / 2
    g = 1.5 - 0.5 * sqrt(mean**7 / (mean**7 + 25**7))
    c1, c2 = hypot(g * a1, b1), hypot(g * a2, b2)
    h1, h2 = degrees(atan2(b1, g * a1)) % 360, degrees(atan2(b2, g * a2)) % 360
    turn = (h2 - h1 + 180) % 360 - 180
    hue = (h1 + turn / 2) % 360
    light, chroma = (l1 + l2) / 2 - 50, (c1 + c2) / 2
    t = 1 - 0.17 * cos(radians(hue - 30)) + 0.24 * cos(radians(2 * hue)) + 0.32 * cos(radians(3 * hue + 6))
    t -= 0.2 * cos(radians(4 * hue - 63))
    dl = (l2 - l1) / (1 + 0.015 * light**2 / sqrt(20 + light**2))
    dc = (c2 - c1) / (1 + 0.045 * chroma)
    dh = 2 * sqrt(c1 * c2) * sin(radians(turn / 2)) / (1 + 0.015 * chroma * t)
    rotation = -2 * sqrt(chroma**7 / (chroma**7 + 25**7)) * sin(radians(60 * exp(-(((hue - 275) / 25) ** 2))))
    return sqrt(dl**2 + dc**2 + dh**2 + rotation * dc * dh)


@pytest.mark.parametrize(("first", "second", "expected"), [
    ((50.0, 2.6772, -79.7751), (50.0, 0.0, -82.7485), 2.0425),
    ((50.0, 2.49, -0.001), (50.0, -2.49, 0.0011), 7.2195),
    ((22.7233, 20.0904, -46.694), (23.0331, 14.973, -42.5619), 2.0373),
    ((90.8027, -2.0831, 1.441), (91.1528, -1.6435, 0.0447), 1.4441),
])  # fmt: skip
def test_the_difference_is_that_of_its_authors(first, second, expected):
    """Pairs 1, 13, 25 and 31 of their test data."""
    assert difference(first, second) == pytest.approx(expected, abs=1e-4)


def contrast(first, second):
    """WCAG's ratio of luminances."""
    dark, light = sorted(float(XYZ[1] @ linear(colour)) + 0.05 for colour in (first, second))
    return light / dark


def colours(name):
    """Of a graph's lines."""
    overrides = BY_NAME[name]["fieldConfig"]["overrides"]
    return {one["matcher"]["options"]: item["value"]["fixedColor"]
            for one in overrides for item in one["properties"] if item["id"] == "color"}  # fmt: skip


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("name", [
    "mirage: Busy is not useful: GPU utilization against MFU", "step: Bytes sent, per GPU and step",
])  # fmt: skip
def test_lines_that_cross_are_told_apart(name, vision):
    """By everybody."""
    for (first, a), (second, b) in combinations(colours(name).items(), 2):
        assert difference(lab(a, vision), lab(b, vision)) > APART, (first, second)


@pytest.mark.parametrize("colour", [meaning.MFU, meaning.FAULT])
@pytest.mark.parametrize("theme", [DARK, LIGHT])
def test_a_thin_line_is_seen_in_both_themes(colour, theme):
    """At WCAG's contrast for graphics."""
    assert contrast(colour, theme) >= 3


@pytest.mark.parametrize("dashboard", DASHBOARDS.values(), ids=DASHBOARDS)
def test_a_ribbon_has_the_colour_of_the_truth(dashboard):
    """Not that of what is bad: it marks when a fault was on, whether or not anything suffered."""
    [ribbons] = dashboard["annotations"]["list"]
    assert ribbons["iconColor"] == meaning.FAULT


def by_threshold():
    for name, panel in BY_NAME.items():
        defaults = panel["fieldConfig"]["defaults"]
        if defaults.get("color") == {"mode": "thresholds"}:
            yield pytest.param(defaults["thresholds"]["steps"], id=name)


@pytest.mark.parametrize("steps", list(by_threshold()))
def test_what_is_absent_has_no_colour(steps):
    """The words in its place would be green, as if all were well, or red."""
    assert steps[0] == {"value": None, "color": meaning.PLAIN}


def own_colour(panel, legend, ref):
    """Whether a line has one that somebody gave it."""
    config = panel["fieldConfig"]
    matches = {"byName": lambda text: text == legend, "byFrameRefID": lambda text: text == ref,
               "byRegexp": lambda text: re.search(text.strip("/"), legend)}  # fmt: skip
    return config["defaults"].get("color", {}).get("mode") in ("fixed", "shades") or any(
        matches[one["matcher"]["id"]](one["matcher"]["options"]) and any(item["id"] == "color" for item in one["properties"])
        for one in config["overrides"]
    )  # fmt: skip


PHASES = ["data_wait", "h2d", "forward", "backward", "allreduce", "optimizer", "checkpoint", "other"]
VALUES = {"phase": PHASES, "outcome": ["complete", "incomplete", "dropped", "unsupported"], "mode": ["idle", "nice", "iowait"],
          "job": ["dcgm"], "collector": ["nvml"]}  # fmt: skip


def lines():
    for name, panel in BY_NAME.items():
        for target in panel["targets"] if panel["type"] == "timeseries" else ():
            [label] = re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]) or [None]
            for value in VALUES[label] if label else [""]:
                legend = re.sub(r"\{\{\w+\}\}", value, target["legendFormat"]).replace("$rank", "0")
                yield pytest.param(panel, legend, target["refId"], id=f"{name}: {legend}")


@pytest.mark.parametrize(("panel", "legend", "ref"), list(lines()))
def test_no_line_takes_its_colour_from_grafanas_palette(panel, legend, ref):
    """Which has green and red for whoever comes first and second."""
    assert own_colour(panel, legend, ref)
