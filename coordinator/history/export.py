"""A deployment's log as a file that a user can send and replay: JSON lines, without its secrets.

The lines in order: a header; the first state, if the log does not begin at its first entry; the entries; the nodes that
the decisions made, as they were at the time; and an end line. The end line counts the lines, so that a reader notices a
truncated file. A reader streams the file and never loads all of it.

The values of keys like ``password`` in a job's options or params are masked in the same way as settings
(:func:`sardonyx.core.secrets.is_secret`). The same text is masked wherever an error quotes it. No decision reads
such a key, so the masked log gives the same decisions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import IO, Any

import msgspec

from coordinator.core.projection import encode_note
from coordinator.core.state import Job, State, new_state
from coordinator.core.stored_state import decode_state, encode_state, older_rules, refuse_newer_rules
from coordinator.history.replay import Stand
from sardonyx.core import node_paths
from sardonyx.core.conditions import Condition, functions_in
from sardonyx.core.errors import Failure, SardonyxError, SetupError
from sardonyx.core.events import FORMAT, OLDEST, OLDEST_RULES, AnyEvent, SetAside, WithSpec
from sardonyx.core.notes import JobNote
from sardonyx.core.secrets import Secrets, masked
from sardonyx.core.spec import JobSpec, Route, TaskSpec, decode_spec, encode_spec
from sardonyx.core.wire_types import ready_for_threads

SPECS = ("spec", "next_spec", "former", "gone_spec", "into_spec")
"""The attributes of a job that are specs."""


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="line"):
    pass


@ready_for_threads
class Header(_Line, frozen=True, tag="header"):
    """The first line. ``checkpoint``: the nodes are at least as new as this event, and none is newer than ``last``."""

    format: int
    deployment: str
    first: int
    last: int
    checkpoint: int
    version: str
    """Of Sardonyx, as it made the file."""
    rules: int
    """By which the first entry was decided."""


class BaseLine(_Line, frozen=True, tag="base"):
    """The state after event ``first - 1``."""

    state: msgspec.Raw


class EntryLine(_Line, frozen=True, omit_defaults=True, tag="entry"):
    n: int
    event: AnyEvent
    request: str = ""


class NodeLine(_Line, frozen=True, tag="node"):
    path: str
    data: str


class EndLine(_Line, frozen=True, tag="end"):
    entries: int
    nodes: int


@ready_for_threads
class _Format(msgspec.Struct):
    line: str = ""
    format: int = 0


_lines: msgspec.json.Decoder[BaseLine | EntryLine | NodeLine | EndLine] = msgspec.json.Decoder(
    BaseLine | EntryLine | NodeLine | EndLine
)


# Writing


def lines_of(
    header: Header, base: State | None, entries: Iterable[EntryLine], nodes: dict[str, bytes], mask: Mask
) -> Iterator[bytes]:
    """The lines of a file, with secrets masked.

    Args:
        header: the first line.
        base: the state before the first entry; this function changes it. None if nothing had happened.
        entries: from ``header.first`` to ``header.last``.
        nodes: the nodes in the tree.
        mask: has learned the secrets of ``base`` and ``entries``.
    """
    yield _line(header)
    if base is not None:
        yield _line(BaseLine(msgspec.Raw(encode_state(mask.state(base)))))
    count = 0
    for entry in entries:
        count += 1
        yield _line(msgspec.structs.replace(entry, event=mask.event(entry.event)))
    for path in sorted(nodes):
        yield _line(NodeLine(path, mask.node(path, nodes[path]).decode()))
    yield _line(EndLine(count, len(nodes)))


def _line(line: _Line) -> bytes:
    return msgspec.json.encode(line, order="deterministic") + b"\n"


class Mask:
    """Removes secrets. It must :meth:`learn` every job before the first line is written.

    Args:
        secrets: adds to these, which others use too; None: to its own.
    """

    def __init__(self, secrets: Secrets | None = None) -> None:
        self._secrets = Secrets() if secrets is None else secrets

    def learn(self, spec: JobSpec) -> None:
        """Remember the secrets of a job, so that they are recognised where a text quotes them."""
        for task in spec.catalog:
            self._secrets.learn(task.options)
            self._secrets.learn(task.params)
        for route in spec.routes.values():
            for _, params in functions_in(route.where or ""):
                self._secrets.learn(params)

    def learn_job(self, job: Job) -> None:
        """The same of a job in a state, and of all specs that it has besides."""
        for field in SPECS:
            if (spec := getattr(job, field)) is not None:
                self.learn(spec)

    def spec(self, spec: JobSpec) -> JobSpec:
        """A job without its secrets."""
        routes = {link: self._route(route) for link, route in spec.routes.items()}
        return msgspec.structs.replace(spec, catalog=[self._task(task) for task in spec.catalog], routes=routes)

    def event(self, event: AnyEvent) -> AnyEvent:
        """An event without secrets."""
        if isinstance(event, WithSpec):
            return msgspec.structs.replace(event, spec=self.spec(event.spec))
        if isinstance(event, SetAside):
            inner = self.event(event.event)
            trace = self._secrets.text(event.traceback)
            return msgspec.structs.replace(event, event=inner, error=self.failure(event.error), traceback=trace)
        error = getattr(event, "error", None)
        return event if error is None else msgspec.structs.replace(event, error=self.failure(error))

    def state(self, state: State) -> State:
        """A state without secrets; changes the state in place."""
        for job in state.jobs.values():
            for field in SPECS:
                if (spec := getattr(job, field)) is not None:
                    setattr(job, field, self.spec(spec))
            job.error = self.failure(job.error) if job.error else None
            for task in job.tasks.values():
                task.error = self.failure(task.error) if task.error else None
        return state

    def node(self, path: str, data: bytes) -> bytes:
        """A node's data without secrets; data that is not one of our notes stays unchanged."""
        if not path.startswith(f"{node_paths.JOB}/"):
            return data
        try:
            if path.endswith("/spec"):
                return encode_spec(self.spec(decode_spec(data)))
            if path.endswith("/status"):
                note = msgspec.json.decode(data, type=JobNote)
                return (
                    encode_note(msgspec.structs.replace(note, error=self.failure(note.error))) if note.error else data
                )
        except msgspec.DecodeError:
            return data
        return data

    def failure(self, failure: Failure) -> Failure:
        """An error whose texts quote no secret."""
        return msgspec.structs.replace(
            failure,
            message=self._secrets.text(failure.message),
            cause=self._secrets.text(failure.cause),
            fix=self._secrets.text(failure.fix),
            traceback=self._secrets.text(failure.traceback),
            where={key: self._secrets.text(value) for key, value in failure.where.items()},
        )

    def plain(self, value: Any) -> Any:
        """Plain data, as it goes into JSON, whose texts quote no secret."""
        return self._secrets.plain(value)

    def _route(self, route: Route) -> Route:
        if route.where is None or isinstance(route.where, str):
            return route
        return msgspec.structs.replace(
            route, where=msgspec.convert(masked(msgspec.to_builtins(route.where)), Condition)
        )

    def _task(self, task: TaskSpec) -> TaskSpec:
        return msgspec.structs.replace(task, options=masked(task.options), params=masked(task.params))


# Reading


class LogFile:
    """A file that is being read. It reads the header and the base at once, and the rest on demand, once.

    Args:
        source: the file, open for reading bytes.
        name: what to call it in errors.

    Raises:
        SetupError: ``SX-LOG-FORMAT``: written by another version of Sardonyx.
        SardonyxError: ``SX-LOG-FILE``: damaged, cut short, or not such a file at all; now or while reading on.
    """

    def __init__(self, source: IO[bytes], name: str) -> None:
        self._source = source
        self._name = name
        self._number = 0
        self._held: BaseLine | EntryLine | NodeLine | EndLine | None = None
        self.nodes: dict[str, bytes] = {}
        """The nodes; filled when the last entry has been read."""
        self.header = self._read_header()
        self._base: BaseLine | None = None
        if self.header.first > 1:
            line = self._next()
            if not isinstance(line, BaseLine):
                raise self._damaged("the state before the first entry is missing")
            self._base = line

    @property
    def stand(self) -> Stand:
        """The tree at the time of the export; its nodes are available after the last entry."""
        return Stand(self.header.checkpoint, self.header.last, self.nodes)

    def check_holds(self, n: int) -> None:
        """Raises ``SX-LOG-RANGE`` if this file cannot give the state after event ``n``."""
        if not self.header.first - 1 <= n <= self.header.last:
            raise SardonyxError(
                "SX-LOG-RANGE",
                f"{self._name} has no entry {n}; it holds entries {self.header.first} to {self.header.last}",
                fix=f"name one of {self.header.first} to {self.header.last}",
                where={"file": self._name, "n": n},
            )

    def begin(self) -> State:
        """The state before the first entry, a new object each time."""
        state = (
            new_state(self.header.deployment, self.header.rules)
            if self._base is None
            else decode_state(bytes(self._base.state))
        )
        if state.n != self.header.first - 1:
            raise self._damaged(
                f"its state is that after event {state.n}, and its entries begin at {self.header.first}"
            )
        return state

    def entries(self) -> Iterator[EntryLine]:
        """The entries, in order. After the last one, reads the nodes and checks the end."""
        n = self.header.first
        while isinstance(line := self._next(), EntryLine):
            if line.n != n:
                raise self._damaged(f"entry {line.n} stands where entry {n} should")
            yield line
            n += 1
        if n != self.header.last + 1:
            raise self._damaged(f"entries {n} to {self.header.last} are missing")
        while isinstance(line, NodeLine):
            if line.path in self.nodes:
                raise self._damaged(f"node {line.path} stands there twice")
            self.nodes[line.path] = line.data.encode()
            line = self._next()
        if not isinstance(line, EndLine) or line.nodes != len(self.nodes) or line.entries != n - self.header.first:
            raise self._damaged("it does not end as it should")
        if self._source.read(1):
            raise self._damaged("it goes on behind its end")

    def _read_header(self) -> Header:
        data = self._read()
        try:
            found = msgspec.json.decode(data, type=_Format)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self._damaged(str(error)) from None
        if found.line != "header":
            raise self._damaged("it does not begin with the header of a log")
        if not OLDEST <= found.format <= FORMAT:
            raise self._of_another_version(
                f"it has format {found.format}, this version reads formats {OLDEST} to {FORMAT}"
            )
        try:
            header = msgspec.json.decode(data, type=Header)
        except msgspec.DecodeError as error:
            raise self._damaged(str(error)) from None
        refuse_newer_rules(header.rules)
        if header.rules < OLDEST_RULES:
            raise self._of_another_version(older_rules(header.rules))
        return header

    def _of_another_version(self, why: str) -> SetupError:
        return SetupError(
            "SX-LOG-FORMAT",
            f"{self._name} cannot be read: {why}",
            cause="the file was made by another version",
            fix="replay it with the version that made it; its first line says which",
        )

    def _next(self) -> BaseLine | EntryLine | NodeLine | EndLine:
        data = self._read()
        try:
            return _lines.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self._damaged(str(error)) from None

    def _read(self) -> bytes:
        self._number += 1
        data = self._source.readline()
        if not data.endswith(b"\n"):
            raise self._damaged("the file ends here, and should not" if not data else "the line is cut off")
        return data

    def _damaged(self, why: str) -> SardonyxError:
        return SardonyxError(
            "SX-LOG-FILE",
            f"{self._name} is damaged, or is not a log that was exported: line {self._number} cannot be read",
            cause=why,
            fix="export it again with `sardonyx log export -o FILE`, and send it as it is",
            where={"file": self._name, "line": self._number},
        )
