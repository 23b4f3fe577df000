"""Reads YAML text into plain values, with the line of every field.

Called by `load.py`. Never builds objects from tags, and never guesses: a word that YAML readers understand in different
ways (`no`, `0644`) is refused, so that a manifest means the same here and on a cluster.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import yaml

from sinkruntime.errors import ManifestError, Problem
from sinkruntime.spec.paths import FieldPath, path_text

TEXT_BYTES_MAX = 1024 * 1024  # etcd takes no larger object
NODES_MAX = 50_000  # counted with aliases expanded, against "a billion laughs"
DEPTH_MAX = 64

_TAG = "tag:yaml.org,2002:"
_AMBIGUOUS = "tag:sinkjob.io,2026:ambiguous"
_PLAIN_TAGS = {
    f"{_TAG}null": r"~|null|Null|NULL|",
    f"{_TAG}bool": r"true|True|TRUE|false|False|FALSE",
    f"{_TAG}int": r"[-+]?(0|[1-9][0-9]*)",
    _AMBIGUOUS: r"y|Y|yes|Yes|YES|n|N|no|No|NO|on|On|ON|off|Off|OFF"
    r"|[-+]?0[0-9_]+|[-+]?0[xXoObB][0-9a-fA-F_]+|[-+]?[0-9][0-9]*_[0-9_.]*",
    f"{_TAG}float": r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
    f"{_TAG}merge": r"<<",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Lines:
    """The line of every field of a text, by the field's path as text."""

    by_path: Mapping[str, int] = field(default_factory=dict)

    def of(self, path: str) -> int | None:
        """The line of the field, or of the nearest one around it; None when there is no text."""
        while path not in self.by_path and path:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return self.by_path.get(path)


NO_LINES = Lines()


@dataclass(frozen=True, slots=True)
class Document:
    """A manifest as plain values (text, numbers, bools, None, lists, dicts), and the line of every field.

    `problems` are single values that cannot be read as they stand; the rest can still be looked at.
    """

    value: dict[str, Any]
    lines: Lines
    problems: tuple[Problem, ...] = ()


class _Loader(yaml.SafeLoader):
    """Composes nodes; its plain scalars follow YAML 1.2 where 1.1 and 1.2 agree."""

    yaml_implicit_resolvers: ClassVar[dict[Any, Any]] = {}  # type: ignore[misc]  # the stub calls it an instance's
    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.depth += 1
        if self.depth > DEPTH_MAX:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem=f"more than {DEPTH_MAX} levels deep", problem_mark=mark)
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


for _tag, _pattern in _PLAIN_TAGS.items():
    _Loader.add_implicit_resolver(_tag, re.compile(rf"^(?:{_pattern})\Z"), None)


def read_yaml(text: str, source: str = "") -> Document:
    """Read one mapping from `text`; ManifestError when it is no YAML, not one document, or no mapping."""
    if len(text.encode("utf-8", "surrogatepass")) > TEXT_BYTES_MAX:
        raise ManifestError([Problem("", None, f"larger than {TEXT_BYTES_MAX} bytes")], source)
    node = _only_document(text, source)
    reader = _Reader()
    value = reader.value(node, ())
    if not isinstance(value, dict):
        message = "a manifest is a mapping of fields, this is " + ("a list" if isinstance(value, list) else "one value")
        raise ManifestError([Problem("", node.start_mark.line + 1, message)], source)
    return Document(value, Lines(reader.lines), tuple(reader.problems))


def _only_document(text: str, source: str) -> yaml.Node:
    try:
        nodes = [node for node in yaml.compose_all(text, Loader=_Loader) if not _is_empty(node)]
    except yaml.MarkedYAMLError as error:
        raise ManifestError([_syntax_problem(error)], source) from error
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        # The scanner lets Python's own error through for an impossible escape such as "\UFFFFFFFF".
        what = f"a character that {'YAML does not allow' if isinstance(error, yaml.YAMLError) else 'does not exist'}"
        raise ManifestError([Problem("", None, f"not valid YAML: {what}")], source) from error
    if not nodes:
        raise ManifestError([Problem("", None, "the manifest is empty")], source)
    if len(nodes) > 1:
        line = nodes[1].start_mark.line + 1
        message = f"{len(nodes)} documents in one file"
        raise ManifestError([Problem("", line, message, "put each SinkJob into a file of its own")], source)
    return nodes[0]


def _is_empty(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == f"{_TAG}null" and not node.value


def _syntax_problem(error: yaml.MarkedYAMLError) -> Problem:
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else None
    what = error.problem or error.context or "cannot be read"
    if "'\\t'" in what:
        return Problem("", line, "not valid YAML: a tab where YAML wants spaces", "indent with spaces")
    column = f" (column {mark.column + 1})" if mark else ""
    return Problem("", line, f"not valid YAML: {what}{column}")


@dataclass(slots=True)
class _Reader:
    """Turns composed nodes into values; collects problems instead of stopping at the first."""

    lines: dict[str, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    nodes: int = 0
    _open: set[int] = field(default_factory=set)

    def value(self, node: yaml.Node, path: FieldPath) -> Any:
        self.lines.setdefault(path_text(path), node.start_mark.line + 1)
        self.nodes += 1
        if self.nodes > NODES_MAX:
            if self.nodes == NODES_MAX + 1:
                self._problem(path, node, f"more than {NODES_MAX} values (aliases count each time)")
            return None
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        if id(node) in self._open:
            return self._problem(path, node, "an alias that contains itself")
        self._open.add(id(node))
        try:
            return self._collection(node, path)
        finally:
            self._open.remove(id(node))

    def _problem(self, path: FieldPath, node: yaml.Node, message: str, expected: str = "") -> Any:
        """Record a problem; the text, or None for what has none, stands in for the value."""
        self.problems.append(Problem(path_text(path), node.start_mark.line + 1, message, expected))
        return node.value if isinstance(node, yaml.ScalarNode) else None

    def _collection(self, node: yaml.Node, path: FieldPath) -> Any:
        if isinstance(node, yaml.SequenceNode) and node.tag == f"{_TAG}seq":
            return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
        if isinstance(node, yaml.MappingNode) and node.tag == f"{_TAG}map":
            return self._mapping(node, path)
        return self._problem(path, node, f"the YAML tag `{_tag_text(node)}` is not supported", "leave it out")

    def _mapping(self, node: yaml.MappingNode, path: FieldPath) -> dict[str, Any]:
        merge = f"{_TAG}merge"
        merged: dict[str, Any] = {}
        for value_node in (value for key, value in node.value if key.tag == merge):
            for part in self._merge_parts(value_node, path):
                merged = {**part, **merged}
        # After the merged ones, so that the lines of its own fields are those where they stand.
        own: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if key_node.tag == merge:
                continue
            key = self._key(key_node, path)
            if key is None:
                continue
            if key in own:
                self._problem((*path, key), key_node, "given twice", "keep one of them")
                continue
            self.lines[path_text((*path, key))] = key_node.start_mark.line + 1
            own[key] = self.value(value_node, (*path, key))
        return {**merged, **own}

    def _merge_parts(self, node: yaml.Node, path: FieldPath) -> Iterator[dict[str, Any]]:
        value = self.value(node, path)
        parts = value if isinstance(value, list) else [value]
        for part in parts:
            if isinstance(part, dict):
                yield part
            else:
                self._problem((*path, "<<"), node, "`<<` merges a mapping, or a list of mappings")

    def _key(self, node: yaml.Node, path: FieldPath) -> str | None:
        if not isinstance(node, yaml.ScalarNode):
            self._problem(path, node, "a key must be text, not a list or a mapping")
            return None
        if node.tag != f"{_TAG}str":
            self._problem(path, node, f"the key `{node.value}` is not text", f'write "{node.value}" in quotes')
            return str(node.value)
        return str(self._scalar(node, path))

    def _scalar(self, node: yaml.ScalarNode, path: FieldPath) -> Any:
        text: str = node.value
        if node.tag == f"{_TAG}str":
            if any("\ud800" <= letter <= "\udfff" or letter == "\0" for letter in text):
                return self._problem(path, node, "holds a character that is not text (NUL, or half of a pair)")
            return text
        if node.tag == _AMBIGUOUS:
            other = "true or false" if text.isalpha() else "a decimal number"
            expected = f'write "{text}" in quotes for text, or {other}'
            return self._problem(path, node, f"`{text}` means different things to different YAML readers", expected)
        try:
            return _convert(node.tag, text)
        except KeyError:
            return self._problem(path, node, f"the YAML tag `{_tag_text(node)}` is not supported", "leave it out")
        except ValueError:
            return self._problem(path, node, f"`{text[:40]}` is not a number, true, false or null that JSON can hold")


def _convert(tag: str, text: str) -> Any:
    """The value of a scalar; KeyError: no such tag, ValueError: the text does not fit it."""
    if tag == f"{_TAG}int":
        number = int(text) if len(text) <= 20 else 2**63
        if abs(number) >= 2**63:
            raise ValueError(text)
        return number
    if tag == f"{_TAG}float":
        value = float(text.replace(".inf", "inf").replace(".nan", "nan"))
        if not math.isfinite(value):
            raise ValueError(text)
        return value
    if tag not in (f"{_TAG}bool", f"{_TAG}null"):
        raise KeyError(tag)
    words = {"true": True, "false": False} if tag == f"{_TAG}bool" else {"": None, "~": None, "null": None}
    if text.lower() not in words:
        raise ValueError(text)
    return words[text.lower()]


def _tag_text(node: yaml.Node) -> str:
    return str(node.tag).replace(_TAG, "!!")
