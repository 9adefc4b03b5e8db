"""What a pattern stands for: what ``glob`` finds, but a folder that cannot be listed is an error."""

from __future__ import annotations

import fnmatch
import glob
import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

from sardonyx.connectors.files import byte_ranges


def visible(name: str) -> bool:
    """Whether a file or a folder with this name counts. Every file system has a ``lost+found``, which only root may list."""
    return not name.startswith(("_", ".")) and name != "lost+found"


def matches(pattern: str) -> list[str]:
    """List the files and folders that match, in a fixed order. Names that are not visible match if the pattern names them.

    Raises:
        InputError: ``SX-INPUT-UNREADABLE``, ``SX-INPUT-AWAY``: a folder in which the pattern looks cannot be looked into.
    """
    folder, parts = pattern, list[str]()
    while glob.has_magic(folder):
        folder, part = os.path.split(folder)
        parts.insert(0, part)
    if not parts:
        return [pattern] if os.path.lexists(pattern) else []
    return sorted(set(_Folder(folder, frozenset(Path(pattern).parts)).matches(parts)))


class _Folder:
    """A folder in which a pattern looks. It is listed at most once.

    Args:
        path: where it is; empty: here.
        named: the parts of the pattern.
        above: the real paths of the folders through which ``**`` has come here.
    """

    def __init__(self, path: str, named: frozenset[str], above: frozenset[str] = frozenset()) -> None:
        self._path, self._named, self._above = path, named, above

    def matches(self, parts: Sequence[str]) -> Iterator[str]:
        """What the rest of a pattern stands for in this folder."""
        part, rest = parts[0], parts[1:]
        if part == "**":
            yield from self._at_any_depth(parts)
        elif glob.has_magic(part):
            for entry in self._entries:
                if fnmatch.fnmatchcase(entry.name, part) and self._passes(entry.name, part):
                    yield from self._at(entry.name, rest) if not rest or _is_folder(entry) else ()
        elif self._has(part):
            yield from self._at(part, rest)

    def _at(self, name: str, rest: Sequence[str]) -> Iterator[str]:
        path = os.path.join(self._path, name)  # noqa: PTH118 - as `glob` writes it
        return _Folder(path, self._named).matches(rest) if rest else iter([path])

    def _at_any_depth(self, parts: Sequence[str]) -> Iterator[str]:
        """For a pattern that begins with ``**``. A folder stands for all that is below it."""
        yield from self.matches(parts[1:]) if parts[1:] else self._at("", ())
        above = self._above | {os.path.realpath(self._path)}
        for entry in self._entries if parts[1:] else ():
            path = os.path.join(self._path, entry.name)  # noqa: PTH118
            leads_up = entry.is_symlink() and os.path.realpath(path) in above
            if self._passes(entry.name, "**") and not leads_up and _is_folder(entry):
                yield from _Folder(path, self._named, above).matches(parts)

    def _passes(self, name: str, part: str) -> bool:
        return (visible(name) or name in self._named) and (part.startswith(".") or not name.startswith("."))

    @cached_property
    def _entries(self) -> list[os.DirEntry[str]]:
        """What is in the folder; nothing if it is a file, or gone."""
        with byte_ranges.explained(self._path):
            try:
                with os.scandir(self._path or ".") as entries:
                    return list(entries)
            except (FileNotFoundError, NotADirectoryError):
                return []

    def _has(self, name: str) -> bool:
        path = os.path.join(self._path, name)  # noqa: PTH118
        with byte_ranges.explained(self._path):
            try:
                return Path(self._path).is_dir() if not name else bool(os.lstat(path))
            except (FileNotFoundError, NotADirectoryError):
                return False


def _is_folder(entry: os.DirEntry[str]) -> bool:
    with byte_ranges.explained(entry.path):
        return Path(entry.path).is_dir() if entry.is_symlink() else entry.is_dir()
