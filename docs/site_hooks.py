"""What the site's builder does to the pages, which are written for a reader of the repository (mkdocs.yml, ``hooks``)."""

from __future__ import annotations

import posixpath
import re
from typing import Any

FENCED = re.compile(r"^( *)```.*?^\1```[^\S\n]*$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((\.\./[^)\s]+)\)")
CODE = re.compile(r"`[^`\n]+`")
PICTURE = re.compile(r'<p>(<img [^>]*?src="([^"]+)"[^>]*>)</p>')


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    folder = posixpath.dirname(page.file.src_uri)
    parts, end = [], 0
    for fence in FENCED.finditer(markdown):
        parts += [_prose(markdown[end : fence.start()], folder), fence.group()]
        end = fence.end()
    return "".join([*parts, _prose(markdown[end:], folder)])


def on_page_content(html: str, **_: Any) -> str:
    """A picture leads to itself in full size: dashboards are wider than a page."""
    return PICTURE.sub(r'<p><a class="picture" href="\2">\1</a></p>', html)


def _prose(text: str, folder: str) -> str:
    text = LINK.sub(lambda link: path_for_link(link[1], link[2], folder) or link[0], text)
    return "\n".join(_plain_pipes(line) if line.startswith("|") else line for line in text.split("\n"))


def path_for_link(text: str, target: str, folder: str) -> str | None:
    """Files outside of docs/ are not on the site, and have no address that we know: a link to one becomes its path.

    None where the link stays in docs/.
    """
    path = posixpath.normpath(posixpath.join("docs", folder, target.partition("#")[0]))
    if path.startswith("docs/"):
        return None
    words = " ".join(text.split())
    return f"`{path}`" if words.strip("`") in (path, posixpath.basename(path)) else f"{words} (`{path}`)"


def _plain_pipes(row: str) -> str:
    """GitHub wants a pipe in a table's code escaped; here the backslash would be shown, and copied with the query."""
    return CODE.sub(lambda code: code.group().replace(r"\|", "|"), row)
