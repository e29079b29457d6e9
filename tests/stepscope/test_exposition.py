"""The fast renderer against prometheus_client, and the pages against promtool and the golden scrapes."""

import math
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from reports import TWO, diagnosed
from stepscope.collector import TableCollector
from stepscope.exposition import Page
from stepscope.metrics import REFEREE, TRAINING, Metric
from stepsim.pages import Pages

GOLDEN = Path(__file__).parents[1] / "golden"


def samples(text):
    """Every sample of a page by name and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def same(a, b):
    return a == b or (math.isnan(a) and math.isnan(b))


@pytest.fixture(scope="module")
def pages(straggling):
    """All pages of a job that has a straggler, and was diagnosed."""
    return Pages(straggling, lambda: straggling.now + 0.123, diagnoser=diagnosed(TWO))


def one_metric(values, **more):
    return Metric(name="m", kind="gauge", help="h", scope="rank", values=lambda _: values, **more)


def test_a_page_has_help_type_and_one_line_per_series():
    """The text format, to the letter."""
    page = Page([one_metric([((), [1, 2.5])])], {"rank": [{"rank": "0"}, {"rank": "1"}]})
    assert page.text(None) == '# HELP m h\n# TYPE m gauge\nm{rank="0"} 1\nm{rank="1"} 2.5\n'


def test_missing_is_not_zero():
    """A value that is not known has no line, and a metric without values no header."""
    page = Page([one_metric([((), [None, 2])])], {"rank": [{"rank": "0"}, {"rank": "1"}]})
    assert 'rank="0"' not in page.text(None)
    assert Page([one_metric([((), [None])])], {"rank": [{}]}).text(None) == ""


def test_special_values_and_labels_are_written_as_prometheus_reads_them():
    """NaN, infinities, and quotes, backslashes and line feeds in labels."""
    page = Page([one_metric([((), [math.nan, math.inf, -math.inf])])],
                {"rank": [{"a": 'say "hi"\\\n'}, {"a": "1"}, {"a": "2"}]})  # fmt: skip
    text = page.text(None)
    assert text.splitlines()[2:] == ['m{a="say \\"hi\\"\\\\\\n"} NaN', 'm{a="1"} +Inf', 'm{a="2"} -Inf']
    assert ("m", (("a", 'say "hi"\\\n'),)) in samples(text)


@pytest.mark.parametrize(("source", "node", "table"), [("training", "node-0", TRAINING), ("referee", "", REFEREE)])
def test_both_renderers_publish_the_same_samples(pages, source, node, table):
    """The page parses to what prometheus_client renders of the same table."""
    served = next(served for name, served in pages.served() if name == source)
    assert {metric.name for metric in served.page.table} <= {metric.name for metric in table}
    read = served.source()
    registry = CollectorRegistry()
    registry.register(TableCollector(served.page, lambda: read))
    ours, theirs = samples(served.page.text(read)), samples(generate_latest(registry).decode())
    assert len(ours) > 100
    assert ours.keys() == theirs.keys()
    assert all(same(ours[key], theirs[key]) for key in ours)


@pytest.mark.prometheus
@pytest.mark.parametrize(("source", "node"), [("training", "node-0"), ("training", "node-3"), ("referee", ""),
                                              ("truth", ""), ("diagnosis", "")])  # fmt: skip
def test_promtool_finds_nothing_to_mend(pages, source, node):
    """Our own names follow Prometheus's conventions."""
    done = lint(pages.text(source, node))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.prometheus
@pytest.mark.parametrize("source", ["dcgm", "node"])
def test_upstream_names_are_linted_as_known(pages, source, request):
    """DCGM's and node_exporter's own names do not follow the conventions: exactly these complaints are known."""
    done = lint(pages.text(source, "node-0"))
    said = "".join(sorted({f"{line}\n" for line in (done.stdout + done.stderr).splitlines()}))
    assert said == golden(f"{source}.lint", said, request)


def golden(name, fresh, request):
    """The committed file of that name; with ``--golden`` it is written first."""
    if request.config.getoption("golden"):
        (GOLDEN / name).write_text(fresh, encoding="utf-8")
    return (GOLDEN / name).read_text(encoding="utf-8")


def lint(text):
    assert shutil.which("promtool"), "promtool is not on PATH"
    return subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("source", "node"), [("training", "node-0"), ("dcgm", "node-0"), ("node", "node-0"),
                                              ("referee", ""), ("truth", ""), ("diagnosis", "")])  # fmt: skip
def test_golden_scrape(pages, source, node, request):
    """The same seed gives the same page; names, labels and their order to the letter, values to nine digits."""
    text = re.sub(r'version="[^"]*"', 'version="…"', pages.text(source, node))
    known = golden(f"{source}.txt", text, request)
    assert [line.rpartition(" ")[0] for line in text.splitlines()] == [
        line.rpartition(" ")[0] for line in known.splitlines()
    ]
    expected = samples(known)
    for key, value in samples(text).items():
        assert value == pytest.approx(expected[key], rel=1e-9, abs=1e-9, nan_ok=True), key
