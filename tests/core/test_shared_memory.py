"""Memory that goes past Spark: what is packed comes out, and nothing else."""

from __future__ import annotations

import dataclasses
import errno
import operator
import os
import pickle
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from spark_tasks import shared_memory, worker_pool
from spark_tasks.worker_pool import from_buffer, to_buffer

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no such memory")

LARGE = pa.table({"number": range(50_000), "text": [f"value {n}" for n in range(50_000)]})
SMALL = LARGE.slice(3, 5)


@pytest.fixture
def memory() -> Iterator[shared_memory.Memory]:
    memory = shared_memory.Memory()
    yield memory
    memory.close()


def test_large_buffers_lie_in_the_memory_and_small_ones_go_along(memory: shared_memory.Memory) -> None:
    """What goes through Spark is small however many rows there are; a memory is not opened for a few."""
    parcel = memory.pack([to_buffer(LARGE), to_buffer(SMALL), "text", to_buffer(LARGE)])
    assert len(parcel.sizes) == 2
    assert len(parcel.head) < 5_000
    first, second, text, third = shared_memory.unpack(parcel, memory.ref)
    assert [from_buffer(each) for each in (first, second, third)] == [LARGE, SMALL, LARGE]
    assert text == "text"
    assert first.address % 64 == third.address % 64 == 0, "Arrow would copy it"


def test_results_are_put_where_there_is_room_for_them(memory: shared_memory.Memory) -> None:
    """The peer allocates the memory; a worker only fills it."""
    parcel = shared_memory.pack(to_buffer(LARGE), memory.ref)
    assert parcel.sizes
    assert from_buffer(memory.unpack(parcel)) == LARGE


def test_what_was_taken_stays_when_the_memory_is_closed() -> None:
    """A batch's rows are used for long after the call that brought them."""
    memory = shared_memory.Memory()
    table = from_buffer(shared_memory.unpack(memory.pack(to_buffer(LARGE)), memory.ref))
    memory.close()
    assert table == LARGE


def test_who_comes_too_late_finds_nothing_not_another_file() -> None:
    """A worker whose batch was given up must not read or write what now stands under the same number."""
    first = shared_memory.Memory()
    parcel, place = first.pack(to_buffer(LARGE)), first.ref
    first.close()
    with pytest.raises(shared_memory.Unreachable):
        shared_memory.unpack(parcel, place)
    second = shared_memory.Memory()
    late = msgspec.structs.replace(place, path=second.ref.path)
    with pytest.raises(shared_memory.Unreachable):
        shared_memory.unpack(parcel, late)
    result = shared_memory.pack(to_buffer(LARGE), late)
    assert not result.sizes
    assert Path(second.ref.path).stat().st_size == 0
    assert from_buffer(shared_memory.unpack(result)) == LARGE
    second.close()


def test_without_room_all_of_it_goes_along() -> None:
    """Where workers are on other machines there is no memory to share."""
    parcel = shared_memory.pack(to_buffer(LARGE))
    assert parcel.sizes == ()
    assert from_buffer(shared_memory.unpack(parcel)) == LARGE
    with pytest.raises(shared_memory.Unreachable):
        shared_memory.unpack(msgspec.structs.replace(parcel, sizes=(5,)))


def test_a_memory_that_cannot_be_made_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Out of file descriptors, or forbidden: each is recognised, and not confused with any other error."""
    for number, lasting in ((errno.EMFILE, False), (errno.EPERM, True)):

        def refused(_name: str, number: int = number) -> int:
            raise OSError(number, "refused")

        monkeypatch.setattr(os, "memfd_create", refused)
        with pytest.raises(shared_memory.Unreachable, match="refused") as raised:
            shared_memory.Memory()
        assert raised.value.lasting is lasting


@pytest.mark.parametrize(
    ("master", "possible"),
    [("local", True), ("local[*]", True), ("local[4,2]", True), ("local-cluster[2,1,512]", False), ("yarn", False)],
)
def test_only_workers_of_this_machine_share_memory(master: str, possible: bool) -> None:
    """On another machine the same path would lead nowhere, or to another process's memory."""

    @dataclasses.dataclass
    class Context:
        master: str

    assert shared_memory.possible(Context(master)) is possible  # type: ignore[arg-type]


def test_parcels_are_plain_data(memory: shared_memory.Memory) -> None:
    """They are pickled by Spark, with whatever protocol it likes."""
    parcel = memory.pack(to_buffer(LARGE))
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps((parcel, memory.ref), protocol)) == (parcel, memory.ref)  # noqa: S301


def test_a_second_attempt_keeps_out_of_the_room_of_the_first(
    memory: shared_memory.Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where Spark tries again, the first attempt may still write, although its result is not awaited any more."""
    sent = worker_pool._Sent(shared_memory.pack([to_buffer(LARGE)]), None, memory.ref)
    for attempt, sizes in ((0, 1), (1, 0)):
        context = types.SimpleNamespace(attemptNumber=lambda attempt=attempt: attempt)
        told = types.SimpleNamespace(TaskContext=types.SimpleNamespace(get=lambda context=context: context))
        monkeypatch.setitem(sys.modules, "pyspark", told)
        outcome = worker_pool._Guarded(operator.itemgetter(0))(sent)
        assert outcome.value is not None
        assert len(outcome.value.sizes) == sizes
        assert from_buffer(memory.unpack(outcome.value)) == LARGE
