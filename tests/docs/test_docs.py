"""The documentation agrees with the code."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from stepsim.commands import app
from stepsim.faults import FAULTS
from stepsim.job import PRESETS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem + "_script", path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", ["metrics", "cli"])
def test_the_reference_is_what_the_generator_writes(page):
    """``make generate`` changes nothing."""
    assert (ROOT / f"docs/{page}.md").read_text(encoding="utf-8") == load(ROOT / f"docs/{page}.py").page()


def test_the_page_of_commands_has_every_option_that_they_take():
    """As typer itself understands the functions that the generator reads."""
    told = {
        command.name: set(options(command)) for command in load(ROOT / "docs/cli.py").typer_commands(app, "stepscope")
    }
    taken = {
        name: {
            option
            for one in command.params
            if not getattr(one, "hidden", False)
            for option in (*one.opts, *one.secondary_opts)
        }
        for name, command in leaves(typer.main.get_command(app), "stepscope")
    }
    assert told == {name: {option for option in found if option.startswith("--")} for name, found in taken.items()}


def options(command):
    return (
        option for one in command.parameters if not one.positional for option in re.findall(r"--[a-z-]+", one.names)
    )


def leaves(command, name):
    if not hasattr(command, "commands"):
        return [(name, command)]
    return [leaf for word, one in command.commands.items() for leaf in leaves(one, f"{name} {word}")]


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
