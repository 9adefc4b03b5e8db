"""Messages as the client of a simulated Kafka hands them out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from confluent_kafka import KafkaError


class Record:
    """A message: a record, or the notice that a partition has no further one."""

    __slots__ = ("_body", "_error", "_headers", "_number", "_offset", "_time", "_topic")

    def __init__(
        self,
        topic: str,
        number: int,
        offset: int,
        body: bytes | None,
        headers: Sequence[tuple[str, bytes]] | None = None,
        error: Any = None,
        time: int = 0,
    ) -> None:
        self._topic, self._number, self._offset = topic, number, offset
        self._body, self._headers, self._error, self._time = body, headers, error, time

    def topic(self) -> str:
        return self._topic

    def partition(self) -> int:
        return self._number

    def offset(self) -> int:
        return self._offset

    def value(self) -> bytes | None:
        return self._body

    def key(self) -> None:
        return None

    def headers(self) -> Any:
        return None if self._headers is None else list(self._headers)

    def timestamp(self) -> tuple[int, int]:
        return 1, self._time

    def error(self) -> Any:
        return self._error

    def __len__(self) -> int:
        return 0 if self._body is None else len(self._body)


class _End:
    """The error that is none: nothing follows."""

    @staticmethod
    def code() -> int:
        found: int = KafkaError._PARTITION_EOF
        return found


_END = _End()


def end_of_partition(topic: str, number: int, offset: int) -> Record:
    """The notice that nothing stands at this offset yet."""
    return Record(topic, number, offset, None, error=_END)
