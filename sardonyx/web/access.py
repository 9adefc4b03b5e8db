"""Who may do what with the pages: tokens, and the roles that they give. Pure, but for reading the file of tokens.

A token is sent in a header by the pages' own code, and never by a browser of its own accord, as cookies are. So a page elsewhere
cannot use it.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import msgspec

from sardonyx.core.errors import SardonyxError, SetupError
from sardonyx.core.names import NAME_RULE, is_name

Role = Literal["viewer", "operator"]
"""A viewer reads. An operator may end, suspend and resume jobs as well, and redo dead letters."""

SHORTEST = 32
"""Characters that a token has at least."""
_FIX = "write a line for each person: name, role (viewer or operator) and token; `openssl rand -hex 32` makes a token"


class Visitor(NamedTuple):
    """Who asks, and what that person may do."""

    name: str
    role: Role


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """Who the server takes you for."""

    name: str
    """Empty: it asks for no token."""
    role: Role
    acts: bool
    """Whether you may change something here: you are an operator, and a running deployment is shown."""


WITHOUT_LOGIN = Visitor("", "viewer")
"""A visitor of pages that ask for no token."""


class Access:
    """Tells visitors by their tokens.

    Args:
        tokens: each person's token.
    """

    def __init__(self, tokens: Iterable[tuple[Visitor, str]] = ()) -> None:
        self._known = [(visitor, _digest(token)) for visitor, token in tokens]

    @property
    def open(self) -> bool:
        """Whether no token is asked for. Then everyone is a viewer."""
        return not self._known

    def visitor(self, authorization: str) -> Visitor | None:
        """Who sends this header; None: it holds no token that is known."""
        if self.open:
            return WITHOUT_LOGIN
        scheme, _, token = authorization.partition(" ")
        digest = _digest(token.strip())
        found = None
        for visitor, known in self._known:  # all of them: the time tells nothing
            if hmac.compare_digest(known, digest):
                found = visitor
        return found if scheme.lower() == "bearer" else None


def read_tokens(path: Path) -> Access:
    """The tokens of a file. Empty lines, and those that begin with ``#``, do not count.

    Raises:
        SetupError: ``SX-WEB-TOKENS``: the file cannot be read, or a line of it. No message quotes a token.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise _unusable(path, f"it cannot be read: {type(error).__name__}") from None
    tokens: dict[str, tuple[Visitor, str]] = {}
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 3:
            raise _unusable(path, f"line {number} has {len(words)} words, and not three")
        name, role, token = words
        if not is_name(name):
            raise _unusable(path, f"in line {number}, the name is not {NAME_RULE}")
        if role not in get_args(Role):
            raise _unusable(path, f"in line {number}, the role is neither viewer nor operator")
        if len(token) < SHORTEST:
            raise _unusable(path, f"the token in line {number} has fewer than {SHORTEST} characters")
        if token in tokens:
            raise _unusable(path, f"line {number} has the token of an earlier line")
        tokens[token] = (Visitor(name, "operator" if role == "operator" else "viewer"), token)
    if not tokens:
        raise _unusable(path, "no line of it holds a token")
    return Access(tokens.values())


def login_wanted() -> SardonyxError:
    """The error for a request without a token that is known."""
    return SardonyxError(
        "SX-WEB-LOGIN",
        "these pages ask for a token",
        cause="the request has none that they know",
        fix="send `Authorization: Bearer TOKEN`; in a browser, type the token. It stands in the file that --tokens names",
    )


def not_allowed(visitor: Visitor) -> SardonyxError:
    """The error for a viewer who wants to change something."""
    return SardonyxError(
        "SX-WEB-ROLE",
        f"{visitor.name} may look, and change nothing",
        cause="the token gives the role viewer",
        fix="ask an operator, or use the command line",
    )


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _unusable(path: Path, cause: str) -> SetupError:
    return SetupError(
        "SX-WEB-TOKENS", f"{path} does not say who may use the pages", cause=cause, fix=_FIX, where={"path": path}
    )
