"""Checks of where a task keeps its state: the same for windows and for keyed state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from sardonyx.connectors.declarations import login_problems
from sardonyx.core.stores import STORES, Store, is_own
from sardonyx.core.text import listed, near
from sardonyx.runtime.functions import check_reference


class WrongStore(NamedTuple):
    """What is wrong with a store."""

    message: str
    fix: str
    cause: str = ""


def wrong_stores(store: Store) -> Iterator[WrongStore]:
    """What is wrong with the store of one task, as far as the job alone tells."""
    if isinstance(store, str) and is_own(store):
        wrong = check_reference(store)
        if wrong is not None:
            yield WrongStore(f"store: {wrong.message}", wrong.fix, wrong.cause)
        return
    if isinstance(store, str):
        if store not in STORES:
            own = 'give sql("postgresql://host/name"), in YAML {sql: address}; or your own class as module:Class'
            yield WrongStore(
                f"there is no store {store!r}{near(store, STORES)}", f"choose from {listed(STORES)}, or {own}"
            )
        return
    given = {name: value for name, value in msgspec.structs.asdict(store).items() if value is not None}
    for problem in login_problems(given):
        yield WrongStore(f"store: {problem.message}", problem.fix, problem.cause)
