"""The documentation agrees with the code."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from stepsim.faults import FAULTS
from stepsim.job import PRESETS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem + "_script", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_metric_tables_are_what_the_generator_writes():
    """``make generate`` changes nothing."""
    assert (ROOT / "docs/metrics.md").read_text(encoding="utf-8") == load(ROOT / "docs/metrics.py").page()


@pytest.mark.parametrize(
    "file",
    sorted(ROOT.glob("*.md")) + sorted((ROOT / "docs").rglob("*.md")) + [ROOT / "deploy/README.md"],
    ids=lambda f: f.name,
)
def test_links_to_files_lead_somewhere(file):
    """And pictures are there."""
    for link in re.findall(r"\]\(([^)#\s]+)\)", file.read_text(encoding="utf-8")):
        if "://" not in link:
            assert (file.parent / link).exists(), link


def test_the_readme_names_every_fault_preset_and_port():
    """What a newcomer can trigger and choose."""
    assert [name for name in (*FAULTS, *PRESETS) if f"`{name}`" not in README] == []
    for port in ("8000", "9090", "9093", "3000"):
        assert f"127.0.0.1:{port}" in README


def test_every_make_target_and_subcommand_of_the_readme_exists():
    """Word by word."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"(?:^|`)make ([a-z-]+)", README, re.MULTILINE)):
        assert f"\n{target}:" in makefile, target
    command = [sys.executable, "-m", "stepsim"]
    for words in set(re.findall(r"\bstepscope ((?:fault|practice) [a-z]+|simulate|history|lab|grade)\b", README)):
        done = subprocess.run([*command, *words.split(), "--help"], capture_output=True, check=False)
        assert done.returncode == 0, words
