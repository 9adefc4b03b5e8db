"""Which idle peer gets which slot of a task: if it can be, one of the process that worked there last. Pure.

Such a process may still have what the slot needs: the code of the job, and the state of its partitions. Of a task with a standby,
the next choice is the process that stands by (:mod:`sardonyx.core.standby`). The preference decides only between peers of one
kind. An offer takes as many peers of each kind as it would without it, so no other job gets less.
(The idea is the sticky assignment of Kafka Streams.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from heapq import merge
from itertools import islice
from typing import NamedTuple

from coordinator.core.indexes import Kind
from coordinator.core.state import State
from sardonyx.core.standby import ranked


class Standby(NamedTuple):
    """A task that has a standby."""

    job: str
    task: str
    avoids: Sequence[str]
    """By slot, a home that does not stand by there, since the last peer failed in it; or nothing."""


def peers_for(
    state: State,
    asked: Kind,
    slots: Sequence[int],
    last: Sequence[str],
    kinds: Collection[Kind] | None = None,
    standby: Standby | None = None,
    declined: Collection[str] = (),
) -> dict[int, str]:
    """The idle peers that get these slots. There must be as many.

    Args:
        state: the peers.
        asked: what the task asks of a peer.
        slots: in the order in which they are filled.
        last: by slot, the home of the peer that worked there last (:attr:`coordinator.core.state.Task.last`).
        kinds: only peers of these, if any are given.
        standby: of the task, if it has one.
        declined: homes whose peers do not get the task now, since they have declined it.

    Returns:
        By slot, in the order of ``slots``: an idle peer.
    """
    able = (name for name in _in_order(state, asked, kinds) if state.peers[name].home not in declined)
    first = list(islice(able, len(slots)))
    homes = {slot: last[slot] for slot in slots if slot < len(last) and last[slot] and last[slot] not in declined}
    if not homes and standby is None:
        return dict(zip(slots, first, strict=True))
    left = Counter(state.peers[name].kind for name in first)
    back = _back(state, left, homes)
    if standby is not None:
        free = [slot for slot in slots if slot not in back]
        back |= _stood_by(state, left, free, standby, list(back.values()), declined)
    taken = {
        *back.values(),
        *(name for home in declined for kind in left for name in state.idle_at.get((kind, home), ())),
    }
    others = [name for kind, count in left.items() for name in _longest(state, kind, count, taken)]
    rest = iter(sorted(others, key=lambda name: (len(state.peers[name].tags), state.peers[name].order)))
    return {slot: back[slot] if slot in back else next(rest) for slot in slots}


def _in_order(state: State, asked: Kind, kinds: Collection[Kind] | None) -> Iterator[str]:
    """The idle peers that can run a task: those with the fewest tags first; of these, those that have been idle longest."""
    if len(state.idle_of) == 1:
        return iter(*state.idle_of.values())
    fitting = [kind for kind in state.idle_of if kind.fits(asked) and (kinds is None or kind in kinds)]
    fewest: dict[int, list[Kind]] = {}
    for kind in fitting:
        fewest.setdefault(len(kind.tags), []).append(kind)
    return (name for tags in sorted(fewest) for name in _by_order(state, fewest[tags]))


def _by_order(state: State, kinds: Collection[Kind]) -> Iterator[str]:
    return merge(*(state.idle_of[kind] for kind in kinds), key=lambda name: state.peers[name].order)


def _back(state: State, left: Counter[Kind], homes: dict[int, str]) -> dict[int, str]:
    """The slots whose last home has an idle peer of these kinds, with that peer. ``left`` loses what is taken."""
    rows: dict[tuple[Kind, str], Iterator[str]] = {}
    found: dict[int, str] = {}
    for slot, home in homes.items():
        for kind in left:
            place = kind, home
            row = rows.setdefault(place, iter(state.idle_at.get(place, ())))
            if left[kind] and (name := next(row, None)) is not None:
                found[slot] = name
                left[kind] -= 1
                break
    return found


def _stood_by(
    state: State,
    left: Counter[Kind],
    slots: Sequence[int],
    standby: Standby,
    taken: Collection[str],
    declined: Collection[str],
) -> dict[int, str]:
    """For these slots, idle peers of these kinds in the order in which their processes stand by. ``left`` loses what is taken."""
    found: dict[int, str] = {}
    for home in ranked(standby.job, standby.task, {home for _, home in state.idle_at}.difference(declined)):
        free = [slot for slot in slots if slot not in found and home not in standby.avoids[slot : slot + 1]]
        for kind in left:
            for name in state.idle_at.get((kind, home), ()):
                if not left[kind] or not free:
                    break
                if name not in taken:
                    found[free.pop(0)] = name
                    left[kind] -= 1
    return found


def _longest(state: State, kind: Kind, count: int, taken: Collection[str]) -> Iterator[str]:
    """The peers of a kind that have been idle longest, of those that are not taken yet."""
    return islice((name for name in state.idle_of[kind] if name not in taken), count) if count else iter(())
