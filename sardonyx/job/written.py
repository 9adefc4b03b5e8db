"""Specs as text: YAML, TOML and JSON become plain data, or an error that names the place."""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from sardonyx.core.errors import SpecUnreadable
from sardonyx.core.text import near

SPECS = "file.py, file.py:name, module:name, a .yaml, .toml or .json file, or - for YAML on standard input"
"""What a spec can be."""


def text_of(path: Path) -> str:
    """The text of a file. Raises SpecUnreadable ``SX-SPEC-SYNTAX``: it is not UTF-8, ``SX-SPEC-MISSING``."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SpecUnreadable(
            "SX-SPEC-SYNTAX",
            f"{path} is not UTF-8 text",
            cause=str(error),
            fix="save it as UTF-8",
            where={"path": path},
        ) from error
    except OSError as error:
        beside = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        raise SpecUnreadable(
            "SX-SPEC-MISSING",
            f"there is no spec {path}{near(path.name, beside)}",
            cause=error.strerror or str(error),
            fix=f"correct the path; a spec is {SPECS}",
            where={"path": path},
        ) from error


def text_of_input() -> str:
    """The text on standard input. Raises SpecUnreadable ``SX-SPEC-SYNTAX``: it is not UTF-8."""
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise SpecUnreadable(
            "SX-SPEC-SYNTAX", "standard input is not UTF-8 text", cause=str(error), fix="save it as UTF-8"
        ) from error


_MOST_VALUES = 100_000
"""Values that a spec in YAML may stand for, once each alias is replaced by what it names."""


class _StrictLoader(yaml.SafeLoader):
    """YAML without the trap that the second of two equal keys silently wins, and without aliases that stand for so much that
    memory cannot hold it, or for themselves.
    """

    def get_single_node(self) -> yaml.Node | None:
        node = super().get_single_node()
        if node is not None and _values_in(node, {}) > _MOST_VALUES:
            why = f"its aliases stand for more than {_MOST_VALUES:,} values"
            raise yaml.composer.ComposerError(None, None, why, node.start_mark)
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable) and key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is there twice", key_node.start_mark
                )
            seen.add(key if isinstance(key, Hashable) else None)
        return super().construct_mapping(node, deep)


def _values_in(node: yaml.Node, known: dict[yaml.Node, int | None]) -> int:
    """How many values a node stands for. ``known``: those of the nodes that were counted; None: it is being counted."""
    if node not in known:
        known[node] = None
        inner = node.value if isinstance(node, yaml.CollectionNode) else ()
        parts = (part for each in inner for part in (each if isinstance(each, tuple) else (each,)))
        known[node] = 1 + sum(_values_in(part, known) for part in parts)
    found = known[node]
    if found is None:
        raise yaml.composer.ComposerError(None, None, "an alias stands for what it is part of", node.start_mark)
    return found


def from_yaml(text: str, source: str) -> object:
    """What a text in YAML says. Raises SpecUnreadable ``SX-SPEC-SYNTAX``, with where the text came from."""
    try:
        return yaml.load(text, _StrictLoader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, RecursionError) as error:
        raise _not_readable("YAML", source, error) from error


def _toml(text: str, source: str) -> object:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise _not_readable("TOML", source, error) from error


def _json(text: str, source: str) -> object:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            keys = [key for key, _ in pairs]
            raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} is there twice")
        return found

    try:
        return json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise _not_readable("JSON", source, error) from error


READERS = {".yaml": from_yaml, ".yml": from_yaml, ".toml": _toml, ".json": _json}
"""The reader of a spec by the suffix of its file."""


def _not_readable(language: str, source: str, error: Exception) -> SpecUnreadable:
    return SpecUnreadable(
        "SX-SPEC-SYNTAX",
        f"{source} is not valid {language}",
        cause="it is nested too deeply" if isinstance(error, RecursionError) else str(error),
        fix="correct the place that the cause names",
        where={"path": source},
    )
