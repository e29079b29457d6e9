"""A YAML file read as nodes, which know their lines, so that every error can name one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path

import yaml


class RuleFileError(ValueError):
    """Says the file, the line, what is wrong and what would be right."""


def line_of(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def is_null(node: yaml.Node) -> bool:
    return node.tag == "tag:yaml.org,2002:null"


def value_of(node: yaml.Node, key: str) -> yaml.Node | None:
    """What a mapping has under a key."""
    pairs = node.value if isinstance(node, yaml.MappingNode) else []
    return next((value for name, value in pairs if name.value == key), None)


class Nodes:
    """``what`` in an error names the thing, as ``alert "Slow"``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise RuleFileError(f"cannot read {path}: {error.strerror}") from None
        except UnicodeDecodeError as error:
            raise RuleFileError(f"{path}: cannot be read as text: {error}") from None

    def root(self) -> yaml.Node | None:
        """None of an empty file."""
        try:
            return yaml.compose(self.text, Loader=yaml.SafeLoader)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            raise self.error(mark.line + 1 if mark else 1, f"not YAML: {error.problem or error.context}") from None
        except yaml.YAMLError as error:
            raise self.error(1, f"not YAML: {error}") from None

    def mapping(self, node: yaml.Node, allowed: tuple[str, ...], what: str) -> dict[str, yaml.Node]:
        found: dict[str, yaml.Node] = {}
        for (key, line), value in self.items(node, what):
            if key not in allowed:
                near = get_close_matches(key, allowed, n=1)
                hint = f"did you mean `{near[0]}`?" if near else f"it may have {', '.join(allowed)}"
                raise self.error(line, f"{what} has no `{key}`; {hint}")
            found[key] = value
        return found

    def items(self, node: yaml.Node, what: str) -> Iterator[tuple[tuple[str, int], yaml.Node]]:
        """Every key with its line, and its value."""
        if not isinstance(node, yaml.MappingNode):
            raise self.error(line_of(node), f"{what} must be a mapping, as `key: value`")
        seen: set[str] = set()
        for key, value in node.value:
            name = self.scalar(key, f"{what}: a key")
            if name in seen:
                raise self.error(line_of(key), f"{what} has `{name}` twice; keep one")
            seen.add(name)
            yield (name, line_of(key)), value

    def sequence(self, node: yaml.Node, what: str) -> list[yaml.Node]:
        if not isinstance(node, yaml.SequenceNode):
            raise self.error(line_of(node), f"{what} must be a list, each item after a `-`")
        return list(node.value)

    def string(self, fields: Mapping[str, yaml.Node], key: str, what: str, parent: yaml.Node) -> str:
        node = fields.get(key)
        written = "" if node is None else self.scalar(node, f"{what}: `{key}`").strip()
        if not written:
            raise self.error(line_of(node or parent), f"{what} has no `{key}`; write `{key}: …`")
        return written

    def scalar(self, node: yaml.Node, what: str) -> str:
        if not isinstance(node, yaml.ScalarNode):
            raise self.error(line_of(node), f"{what} must be a single text")
        return "" if is_null(node) else str(node.value)

    def error(self, line: int, words: str) -> RuleFileError:
        return RuleFileError(f"{self.path}:{line}: {words}")
