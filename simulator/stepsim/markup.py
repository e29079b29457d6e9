"""HTML and SVG whose text cannot be anything but text: a ``str`` is escaped where it goes in, ``Markup`` is not."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from markdown_it import MarkdownIt

EMPTY = ("br", "circle", "line", "link", "meta", "path", "polygon", "rect")


class Markup(str):
    """What may go into a page as it is."""

    __slots__ = ()


def tag(name: str, /, *content: str, **attributes: str | float | None) -> Markup:
    """``class_`` is class, ``stroke_width`` is stroke-width, and None leaves an attribute out."""
    told = "".join(
        f' {key.strip("_").replace("_", "-")}="{_value(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in EMPTY and not content:
        return Markup(f"<{name}{told}/>")
    return Markup(f"<{name}{told}>{joined(content)}</{name}>")


def joined(content: Iterable[str]) -> Markup:
    return Markup("".join(piece if isinstance(piece, Markup) else escaped(piece) for piece in content))


def escaped(text: str) -> Markup:
    return Markup(escape("\n".join(map(printable, text.expandtabs(4).split("\n")))))


def _value(value: str | float) -> str:
    return escaped(value) if isinstance(value, str) else f"{value:.6g}"


def prose(text: str) -> Markup:
    """Markdown: paragraphs, lists, code, emphasis and tables. Neither HTML nor pictures, which might be loaded."""
    reader = MarkdownIt("commonmark", {"html": False}).enable("table").disable(["image", "html_block", "html_inline"])
    return Markup(reader.render(text))


def printable(text: str) -> str:
    """What others wrote, without what would move a terminal's cursor."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)
