"""What is a secret, by the name of its key or by its value, and what is shown in its place; and references to secrets. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

MASK = "******"
"""What is shown in place of a secret."""
QUOTED = 4
"""Characters from which on a secret is masked where a text quotes it; a shorter one would be found everywhere."""

_KEY = re.compile(
    r"pass(word|wd|phrase)|(^|[^a-z])pwd|secret|sasl|digest|token|credential|ssl\.key|authorization|(^|[^a-z])dsn([^a-z]|$)"
    r"|(api|access|account|private|signing|encryption|shared)[._-]?key|connection[._-]?string|basic\.auth\.user",
    re.IGNORECASE,
)
_LOGIN = re.compile(r"(\w[\w+.-]{0,30}://[^\s/?#@:]{0,200}:)([^\s/?#@]+)(?=@)")
"""The password in a URL: ``scheme://user:password@host``. The limits keep the search of a long text short."""
_FIELD = re.compile(
    r"((?:^|[?&;\s])(?:sslpassword|password|passwd|pwd|api_?key|access_?token|sig|signature)=)([^&;\s]+)", re.I
)
"""A password in the query of a URL, or in a connection string."""


_REFERENCES: dict[str, Literal["env", "file"]] = {"$env": "env", "$file": "file"}
_VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True)
class Secret:
    """A secret that a job refers to and does not hold. Peers read it where they use it: as a text.

    It can stand in the ``params`` of a function and in the options of a connector of your own, at any depth. A spec in YAML has
    ``{$env: NAME}`` or ``{$file: PATH}``.
    """

    kind: Literal["env", "file"]
    name: str

    @classmethod
    def env(cls, name: str) -> Secret:
        """The value of an environment variable of the peer daemons.

        Args:
            name: of the variable.
        """
        return cls("env", name)

    @classmethod
    def file(cls, path: str) -> Secret:
        """What a file holds where peer daemons run, without a newline at its end.

        Args:
            path: of the file; absolute.
        """
        return cls("file", path)

    def plain(self) -> dict[str, str]:
        """The reference as it stands in a spec."""
        return {f"${self.kind}": self.name}


def reference(value: Any) -> Secret | None:
    """The secret that plain data refer to, if they are a reference."""
    if isinstance(value, dict) and len(value) == 1:
        ((key, name),) = value.items()
        if key in _REFERENCES and isinstance(name, str):
            return Secret(_REFERENCES[key], name)
    return None


def refers(value: Any) -> bool:
    """Whether plain data refer to a secret somewhere."""
    if reference(value) is not None:
        return True
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(map(refers, inner))


def reference_problem(value: dict[Any, Any]) -> str:
    """What is wrong with a mapping that looks like a reference; empty if nothing is, or if it is none."""
    if not _REFERENCES.keys() & value.keys():
        return ""
    found = reference(value)
    if found is None:
        return "a reference to a secret is a mapping with one key, $env or $file, and a text"
    if found.kind == "env":
        return "" if _VARIABLE.fullmatch(found.name) else f"{found.name!r} is not a name of an environment variable"
    return "" if found.name.startswith("/") else f"the path {found.name!r} is not absolute"


def is_secret(key: str) -> bool:
    """Whether the value of this key must never be shown."""
    return _KEY.search(key) is not None


def passwords(text: str) -> list[str]:
    """The passwords in URLs and connection strings within a text."""
    return [found[2] for pattern in (_LOGIN, _FIELD) for found in pattern.finditer(text)]


def without_passwords(text: str) -> str:
    """A text with the mask in place of each password in a URL or a connection string."""
    if "://" not in text and "=" not in text:
        return text
    return _FIELD.sub(rf"\1{MASK}", _LOGIN.sub(rf"\1{MASK}", text))


def masked(value: Any) -> Any:
    """Plain data with the mask in place of each secret in it, whether its key or its value tells."""
    if isinstance(value, dict):
        return {
            key: MASK if inner and is_secret(str(key)) and reference(inner) is None else masked(inner)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [masked(inner) for inner in value]
    return without_passwords(value) if isinstance(value, str) else value


class Secrets:
    """Secrets that were seen under their keys, so that they are recognised wherever a text quotes them."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._longest_first: list[str] = []

    def __bool__(self) -> bool:
        return bool(self._known)

    def learn(self, value: Any, *, secret: bool = False) -> None:
        """Remember the secrets in plain data, such as the options of a task."""
        if reference(value) is not None:
            return
        if isinstance(value, dict):
            for key, inner in value.items():
                self.learn(inner, secret=secret or is_secret(str(key)))
        elif isinstance(value, list):
            for inner in value:
                self.learn(inner, secret=secret)
        elif isinstance(value, str):
            self._add([value] if secret else passwords(value))

    def plain(self, value: Any) -> Any:
        """Plain data, as it goes into JSON, whose texts quote no secret."""
        if isinstance(value, dict):
            return {key: self.plain(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.plain(inner) for inner in value]
        return self.text(value) if isinstance(value, str) else value

    def text(self, text: str) -> str:
        """A text that quotes no secret."""
        text = without_passwords(text)
        for secret in self._longest_first:
            text = text.replace(secret, MASK)
        return text

    def _add(self, found: Iterable[str]) -> None:
        new = {each for each in found if len(each) >= QUOTED} - self._known
        if new:
            self._known |= new
            self._longest_first = sorted(self._known, key=len, reverse=True)
