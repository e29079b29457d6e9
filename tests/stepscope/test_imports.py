"""Who may import whom."""

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def imported(file):
    """Names of all modules that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def test_core_imports_nothing_but_prometheus_client():
    """In a fresh interpreter, importing every module of the core loads no third-party package but that one."""
    program = """
import pkgutil, sys, importlib, sysconfig
import stepscope
for module in pkgutil.iter_modules(stepscope.__path__): importlib.import_module("stepscope." + module.name)
site = sysconfig.get_paths()["purelib"]
loaded = {name.split(".")[0] for name, m in sys.modules.items() if (getattr(m, "__file__", None) or "").startswith(site)}
print(*sorted(loaded - {"stepscope"}))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    foreign = [name for name in done.stdout.split() if not name.startswith("_")]
    assert foreign == ["prometheus_client"]


def test_the_library_never_imports_the_simulator():
    """Imports go one way: stepsim → stepscope."""
    files = list((ROOT / "exporter" / "stepscope").rglob("*.py"))
    assert len(files) > 5
    assert [file.name for file in files if any(name.startswith("stepsim") for name in imported(file))] == []


def test_model_and_telemetry_never_see_faults():
    """Faults edit parameters; what computes the numbers does not know them."""
    for name in ("model", "telemetry", "loader", "power", "learning", "timeline", "params", "probes"):
        modules = set(imported(ROOT / "simulator" / "stepsim" / f"{name}.py"))
        assert not modules & {"stepsim.faults", "stepsim.board"}, name
