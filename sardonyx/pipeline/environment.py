"""Where a pipeline runs: on services of its own on this machine, or on a cluster."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from sardonyx.client.client import Client
from sardonyx.client.job_handle import JobHandle
from sardonyx.core.errors import SardonyxError
from sardonyx.core.spec import TaskSpec
from sardonyx.core.text import listed
from sardonyx.pipeline.builder import Pipeline
from sardonyx.runtime.settings import Settings, load_settings

if TYPE_CHECKING:
    from sardonyx.dev.daemons import Daemons

_LOOK = 1.0
"""Seconds from one look at a running job to the next."""


class Environment:
    """Where pipelines run: made by :meth:`local` or :meth:`cluster`. Use it in a ``with``, or close it.

        with Environment.local(peers=2) as here:
            rows = here.pipeline("wordcount", build).collect()

    It starts, or connects, when it is first needed.
    """

    def __init__(self, start: Callable[[ExitStack], tuple[Client, Daemons | None]]) -> None:
        self._stack = ExitStack()
        self._start = start
        self._running: tuple[Client, Daemons | None] | None = None
        self._ended = weakref.finalize(self, self._stack.close)  # also when the program ends

    @classmethod
    def local(cls, peers: int = 2, data: Path | str | None = None) -> Environment:
        """ZooKeeper, Kafka, a coordinator and peers on this machine, as `sardonyx dev` starts them. They end with this process,
        and let only its user in.

        Args:
            peers: how many virtual peers.
            data: the directory where the services keep their data; data that is there is used again. None: a temporary one.
        """

        def start(stack: ExitStack) -> tuple[Client, Daemons | None]:
            from sardonyx.dev.daemons import starting_daemons
            from sardonyx.dev.services import starting_services

            _log_quietly()
            starting = stack.enter_context(starting_services(data, private=True))
            daemons = stack.enter_context(starting_daemons(starting.data_dir, virtual_peers=peers))
            daemons.connect(load_settings(**starting.expected()))
            services = starting.ready()
            addresses = {"zookeeper.hosts": services.zookeeper, "kafka.bootstrap_servers": services.kafka}
            settings = load_settings(**{**addresses, **services.login})
            daemons.connect(settings)
            return stack.enter_context(Client(settings=settings)), daemons

        return cls(start)

    @classmethod
    def cluster(cls, settings: Settings | None = None) -> Environment:
        """A cluster that runs already.

        Args:
            settings: its addresses. None: from the environment and ``sardonyx.toml``.
        """
        return cls(lambda stack: (stack.enter_context(Client(settings=settings)), None))

    def __enter__(self) -> Environment:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End what was started here. The jobs of a cluster go on."""
        self._ended()
        self._running = None

    @property
    def client(self) -> Client:
        """For all that a job handle does not do.

        Raises:
            SetupError: the services or the daemons do not start, or the cluster does not answer.
        """
        return self._parts()[0]

    def pipeline(self, name: str, build: Callable[[Pipeline], object], **settings: Any) -> Execution:
        """A pipeline, ready to run.

        Args:
            name: of the job.
            build: adds its sources, operators and sinks.
            settings: as for :class:`sardonyx.Job`.
        """
        made = Pipeline(name, **settings)
        build(made)
        return Execution(self, made)

    def topic(self, name: str, rows: Iterable[Any] = (), partitions: int = 1) -> str:
        """Create a topic for a source to read, and fill it. Jobs never create the topics of their inputs.

        Args:
            name: of the topic.
            rows: are written in turn over its partitions: bytes as they are, all else as JSON.
            partitions: how many it has.

        Returns:
            the name.

        Raises:
            SetupError: ``SX-KAFKA-TOPIC-EXISTS``, ``SX-KAFKA-DENIED``, ``SX-KAFKA-REFUSED``, ``SX-KAFKA-UNREACHABLE``.
        """
        from queues import topics

        settings = self.client.settings
        topics.create(settings, name, partitions)
        values = (row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows)
        topics.write(settings, name, values, partitions)
        return name

    def check(self) -> None:
        """Raises ``SX-DAEMON-DIED`` if the coordinator or the peers of a local environment have ended by themselves."""
        daemons = self._parts()[1]
        if daemons is not None:
            daemons.check()

    def _parts(self) -> tuple[Client, Daemons | None]:
        if self._running is None:
            if not self._ended.alive:
                fix = "make another one"
                raise SardonyxError("SX-PIPELINE-CLOSED", "this environment was closed", fix=fix)
            with ExitStack() as stack:  # if the second does not start, the first ends
                self._running = self._start(stack)
                self._stack.enter_context(stack.pop_all())
        return self._running


class Execution:
    """A pipeline in an environment, as :meth:`Environment.pipeline` returns it."""

    def __init__(self, environment: Environment, pipeline: Pipeline) -> None:
        self._environment = environment
        self.pipeline = pipeline

    def execute(self, resume: str | None = None) -> JobHandle:
        """Submit the pipeline, as :meth:`Client.submit` does, and return a handle on the job.

        Args:
            resume: a job that was stopped or has completed, to go on from where it ended.

        Raises:
            JobInvalid, SardonyxError, JobFailed: as :meth:`Client.submit`.
            SetupError: as :attr:`Environment.client`.
        """
        self._environment.check()
        return self._environment.client.submit(self.pipeline, resume)

    def collect(self, sink: str | None = None, timeout: float | str | None = None) -> list[dict[str, Any]]:
        """Run the pipeline to its end, and return the rows that a sink has written.

        All committed records of its topic are read, or all rows in its directory, and held in memory: for tests and for trying.

        Args:
            sink: its name. None: the only one.
            timeout: how long to wait for the end. The job goes on after it. None: without limit.

        Raises:
            SardonyxError: ``SX-PIPELINE-COLLECT``: there are several sinks, or it writes neither to a topic nor to files.
            JobFailed, Interrupted: as ``JobHandle.await_completion``.
            SetupError: as :attr:`Environment.client`; ``SX-DAEMON-DIED``.
        """
        output = _sink(self.pipeline, sink)
        handle = self.execute()
        for view in handle.follow(interval=_LOOK, timeout=timeout):
            if not view.ended:
                self._environment.check()
        handle.await_completion(timeout=0)  # raises what made it fail
        # As it was submitted: its paths are absolute.
        return _written(self._environment.client.settings, handle.spec().task(output.name))


def _log_quietly() -> None:
    """Warnings on standard error, unless the program has chosen what it logs, and how."""
    import structlog

    from sardonyx.runtime.logging import configure_logging

    if not structlog.is_configured():
        settings = load_settings()
        level = settings.log.level if "log.level" in settings.origins else "warning"
        configure_logging(settings.model_copy(update={"log": settings.log.model_copy(update={"level": level})}))


def _sink(pipeline: Pipeline, name: str | None) -> TaskSpec:
    """Raises ``SX-PIPELINE-COLLECT``: it is not clear which output is meant, or its rows cannot be read."""
    outputs = {task.name: task for task in pipeline.spec().catalog if task.type == "output"}
    output = outputs.get(name or "") if name is not None or len(outputs) != 1 else next(iter(outputs.values()))
    if output is not None and output.connector in ("kafka", "files"):
        return output
    cause = f"it has the sinks {listed(list(outputs)) or 'none'}"
    if output is not None:
        cause = f"sink {output.name!r} writes to {output.connector}"
    raise SardonyxError(
        "SX-PIPELINE-COLLECT",
        f"the rows of pipeline {pipeline.name!r} cannot be collected",
        cause=cause,
        fix="name a sink with a kafka or files connector: collect(sink=...)",
        where={"job": pipeline.name},
    )


def _written(settings: Settings, output: TaskSpec) -> list[dict[str, Any]]:
    from sardonyx.connectors.records import to_records

    if output.connector == "kafka":
        from queues import topics
        from sardonyx.connectors.topics.written import tables_in

        records = topics.read_committed(settings, str(output.options["topic"]))
        return [
            row for table in tables_in(output.options, records, settings.kafka.registry) for row in to_records(table)
        ]
    from sardonyx.connectors.files.written import rows_in

    return to_records(rows_in(str(output.options["path"]), output.options).to_table())


__all__ = ["Environment", "Execution"]
