"""The documentation site: built as ``make docs`` builds it, and looked at page by page."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml

from site_hooks import FENCED, on_page_content, path_for_link

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(str(file.relative_to(DOCS).with_suffix("")) for file in DOCS.rglob("*.md"))


STYLED = re.compile(r"(?:url\(|@import)\s*['\"]?([^)'\";]+)")
"""What a style loads."""


class Seen(HTMLParser):
    """What a page refers to, and its anchors."""

    def __init__(self, text):
        super().__init__()
        self.loads, self.links, self.ids, self.pictures = [], [], set(), []
        self.text, self.headings, self._tag = "", 0, ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self._tag = tag
        self.headings += tag == "h1"
        self.ids |= {given[name] for name in ("id", "name") if given.get(name) and tag != "meta"}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and "canonical" not in given.get("rel", ""):
            self.loads.append(given.get("href"))
        elif given.get("src"):
            self.loads.append(given["src"])
        if tag == "img":
            self.pictures.append(given)
        self.loads += STYLED.findall(given.get("style") or "")

    def handle_data(self, data):
        if self._tag == "style":
            self.loads += STYLED.findall(data)
        self.text += data


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A strict build fails on a page that is in no menu, on a broken link, and on an anchor that does not exist."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True,
                          check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def seen(site):
    """By address within the site; not the page for addresses that do not exist, which does not know where it is."""
    return {
        str(file.relative_to(site)): Seen(file.read_text(encoding="utf-8"))
        for file in site.rglob("*.html")
        if file.name != "404.html"
    }


def test_every_page_of_the_documentation_is_published_and_in_the_menu(seen):
    """And nothing else is a page."""
    addresses = {f"{page}.html" for page in PAGES}
    assert seen.keys() == addresses
    assert addresses - {"index.html"} <= {link.partition("#")[0] for link in seen["index.html"].links}


def test_nothing_but_pages_and_what_they_show_is_published(site):
    """Neither scripts that write pages nor what Python leaves beside them."""
    published = {str(file.relative_to(site)) for file in site.rglob("*") if file.is_file()}
    strange = {name for name in published if not name.endswith((".html", ".png", ".svg", ".css", ".js", ".map", ".gz"))}
    assert (
        strange - {"sitemap.xml", "objects.inv", "search/search_index.json", "practice/public-gpu-rules.yml"} == set()
    )


def test_a_page_asks_no_other_machine_for_anything(seen):
    """No script, style, font or picture from elsewhere, so that it works where there is no network, and tells nobody."""
    assert [(page, one) for page, found in seen.items() for one in found.loads if urlsplit(one).netloc] == []
    assert [
        page for page, found in seen.items() if "mermaid" in found.text
    ] == []  # its script would be loaded from a CDN


def test_no_style_asks_another_machine_for_anything(site):
    """Fonts come by styles."""
    for file in site.rglob("*.css"):
        for one in STYLED.findall(file.read_text(encoding="utf-8")):
            assert one.startswith("data:") or not urlsplit(one).netloc, (file.name, one)


def test_every_link_within_the_site_leads_to_a_page_and_to_an_anchor_on_it(site, seen):
    """The menu's, the pages' own, and those that are made from the code."""
    broken = []
    for page, found in seen.items():
        for link in (*found.links, *found.loads):
            address = urlsplit(link)
            if address.scheme or address.netloc:
                continue
            target = (site / page).parent.joinpath(unquote(address.path)).resolve() if address.path else site / page
            name = str(target.relative_to(site.resolve())) if target.is_relative_to(site.resolve()) else link
            if not target.is_file() or (address.fragment and unquote(address.fragment) not in seen[name].ids):
                broken.append((page, link))
    assert broken == []


def test_every_picture_says_in_words_what_it_shows(seen):
    """For whoever cannot see it."""
    assert [
        (page, one.get("src")) for page, found in seen.items() for one in found.pictures if not one.get("alt")
    ] == []


def test_every_page_has_one_title(seen):
    """Its first line."""
    assert {page: found.headings for page, found in seen.items() if found.headings != 1} == {}


def test_a_link_to_a_file_that_is_not_on_the_site_is_its_path(seen):
    """GitHub follows it; here there is nothing to follow."""
    assert path_for_link("A plain loop", "../examples/plain_loop.py", "") == "A plain loop (`examples/plain_loop.py`)"
    assert path_for_link("alerts.yml", "../prometheus/rules/alerts.yml", "") == "`prometheus/rules/alerts.yml`"
    assert path_for_link("deploy", "../../deploy/README.md#slurm", "runbooks") == "deploy (`deploy/README.md`)"
    assert path_for_link("physics", "../physics.md", "runbooks") is None
    assert "A plain loop (examples/plain_loop.py)" in seen["real-training.html"].text


def test_a_query_in_a_table_can_be_copied(seen):
    """GitHub wants its pipe escaped, and does not show the backslash."""
    assert 'rank:training_culprit:share{phase=~"forward|backward"}' in seen["reading-a-slow-job.html"].text


def test_a_picture_opens_in_full_size():
    """A dashboard is wider than a page."""
    html = '<p><img alt="Ranks" src="pictures/ranks.png" /></p>'
    assert '<a class="picture" href="pictures/ranks.png"><img alt="Ranks"' in on_page_content(html)


def test_lists_within_lists_are_seen_as_such():
    """GitHub takes two spaces for a list within a list, the site's builder four: with four both do."""
    for page in PAGES:
        text = FENCED.sub("", (DOCS / f"{page}.md").read_text(encoding="utf-8"))
        assert re.findall(r"^ {1,3}(?:[-*]|\d+\.) .*", text, re.MULTILINE) == [], page


def test_the_figures_of_the_mirage_are_those_of_the_matrix():
    """Its table was copied by hand, and the matrix is measured anew."""
    rows = table_rows(DOCS / "faults.md", "### Speed and GPUs")
    told = table_rows(DOCS / "mirage.md", "## What the same minutes look like")
    assert len(told) > 6
    healthy = rows["*healthy*"]
    for name, (step, mfu, utilization, active, power) in told.items():
        measured = rows[f"*{name}*" if name == "healthy" else name]
        measured = [healthy[at] if cell == "·" else cell for at, cell in enumerate(measured)]
        assert [step.replace("none ends", "–"), mfu, active, power] == [
            measured[0],
            measured[1],
            measured[3],
            measured[6],
        ], name
        assert utilization == ("the same" if rows.get(name, ["", "", ""])[2] == "·" else measured[2]), name


def table_rows(file, heading):
    """The cells of the first table below a heading, without emphasis, units and distances, by the first cell's first word."""
    lines = file.read_text(encoding="utf-8").partition(f"{heading}\n")[2].split("\n|--", 1)
    body = lines[0] and lines[1].split("\n\n")[0].split("\n")[1:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in body]
    return {
        row[0].split(":")[0].strip("`").replace("*healthy, ", "*healthy "): [bare(cell) for cell in row[1:]]
        for row in cells
    }


def bare(cell):
    """``**0.456** ×1.4`` is 0.456, and ``33.1 %`` is 33.1."""
    bold = re.match(r"\*\*(.+?)\*\*", cell)
    return bold[1] if bold else re.sub(r" (%|W)$", "", cell)


def test_the_menu_has_no_page_twice():
    """Each has one place."""

    def pages(entries):
        for entry in entries:
            if isinstance(entry, str):
                yield entry
            else:
                for value in entry.values():
                    yield from pages(value if isinstance(value, list) else [value])

    listed = list(pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]))
    assert len(listed) == len(set(listed))
