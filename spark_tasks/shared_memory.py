"""Rows that do not go through Spark's JVM: memory that a peer's process shares with Spark's workers on its machine.

On its way through the JVM each byte is copied several times and occupies its heap. Pickle's protocol 5 keeps large buffers
out of the pickle (PEP 574). They are written to anonymous files (``memfd_create``), which the other side opens below
``/proc`` and maps. Such a file is in no folder. It is gone when no process has it open any more, however those processes ended.

Only the peer makes them, also those for results, so that all end with its call, or with the rows that it took from them. A
worker that is late may find another file under the same number. It notices that by device and inode.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import mmap
import os
import pickle
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from pyspark import SparkContext

SMALLEST = 1 << 16
"""Bytes from which on a buffer is worth a file: less goes along with what is packed."""

_PASSING = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC})
"""Errors that may not come back: other processes use all of the resource at the moment."""

_ALIGNED = 64
"""What Arrow wants buffers to begin at."""


class MemfdRef(msgspec.Struct, frozen=True):
    """Where another process of this machine finds an anonymous file."""

    path: str
    device: int
    inode: int


class OutOfBandPickle(msgspec.Struct, frozen=True):
    """A pickled value, whose large buffers may be in an anonymous file."""

    head: bytes
    """Its pickle."""
    sizes: tuple[int, ...] = ()
    """Bytes of each buffer that lies in a memory instead, in order."""


class Unreachable(Exception):
    """Shared memory is not available here, or not any more.

    Attributes:
        lasting: whether it will be the same the next time.
    """

    def __init__(self, reason: str, *, lasting: bool = True) -> None:
        super().__init__(reason)
        self.lasting = lasting


class Memory:
    """An anonymous file of this process.

    Raises:
        Unreachable: this machine gives none, or has no room for it.
    """

    def __init__(self) -> None:
        with _or_unreachable():
            self._fd = os.memfd_create("sardonyx")
        about = os.fstat(self._fd)
        self.ref = MemfdRef(f"/proc/{os.getpid()}/fd/{self._fd}", about.st_dev, about.st_ino)

    def pack(self, value: Any) -> OutOfBandPickle:
        """A value with its large buffers in here."""
        with _or_unreachable():
            return _pack(value, self._fd)

    def unpack(self, packed: OutOfBandPickle) -> Any:
        """What a worker packed into this memory; it stays mapped as long as anything of the value is alive."""
        with _or_unreachable():
            return _unpack(packed, self._fd)

    def close(self) -> None:
        """Close the file. Mapped values stay; no other process can open it any more."""
        os.close(self._fd)


def possible(context: SparkContext) -> bool:
    """Whether all workers are on this machine, and it has such memory."""
    master = str(context.master)
    return hasattr(os, "memfd_create") and (master == "local" or master.startswith("local["))


def pack(value: Any, output: MemfdRef | None = None) -> OutOfBandPickle:
    """A value with its large buffers in ``output``; with all within, if there is none or it cannot be opened."""
    if output is not None:
        with contextlib.suppress(Unreachable), _or_unreachable(), _opened(output, os.O_WRONLY) as fd:
            return _pack(value, fd)
    return OutOfBandPickle(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))


def unpack(packed: OutOfBandPickle, ref: MemfdRef | None = None) -> Any:
    """The value; its memory stays mapped as long as anything of it is alive.

    Raises:
        Unreachable: there is no such memory.
    """
    if not packed.sizes:
        return pickle.loads(packed.head)  # noqa: S301
    if ref is None:
        raise Unreachable("nowhere")
    with _or_unreachable(), _opened(ref, os.O_RDONLY) as fd:
        return _unpack(packed, fd)


@contextlib.contextmanager
def _or_unreachable() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Unreachable(str(error), lasting=error.errno not in _PASSING) from error


@contextlib.contextmanager
def _opened(ref: MemfdRef, flags: int) -> Iterator[int]:
    fd = os.open(ref.path, flags | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        if (found.st_dev, found.st_ino) != (ref.device, ref.inode):
            raise Unreachable("another file")
        yield fd
    finally:
        os.close(fd)


def _pack(value: Any, fd: int) -> OutOfBandPickle:
    large: list[memoryview] = []

    def stays_within(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < SMALLEST:
            return True
        large.append(raw)
        return False

    head = pickle.dumps(value, pickle.HIGHEST_PROTOCOL, buffer_callback=stays_within)
    sizes = tuple(raw.nbytes for raw in large)
    for start, raw in zip(_starts(sizes), large, strict=False):
        written = 0
        while written < raw.nbytes:
            written += os.pwrite(fd, raw[written:], start + written)
    return OutOfBandPickle(head, sizes)


def _unpack(packed: OutOfBandPickle, fd: int) -> Any:
    if not packed.sizes:
        return pickle.loads(packed.head)  # noqa: S301 (as all that comes from Spark's workers)
    starts = _starts(packed.sizes)
    populate = getattr(mmap, "MAP_POPULATE", 0)
    length = starts[-1] + packed.sizes[-1]
    whole = memoryview(mmap.mmap(fd, length, mmap.MAP_SHARED | populate, mmap.PROT_READ))
    buffers = [whole[start : start + size] for start, size in zip(starts, packed.sizes, strict=True)]
    return pickle.loads(packed.head, buffers=buffers)  # noqa: S301


def _starts(sizes: Sequence[int]) -> list[int]:
    """Where each buffer begins."""
    taken = (-(-size // _ALIGNED) * _ALIGNED for size in sizes[:-1])
    return list(itertools.accumulate(taken, initial=0))
