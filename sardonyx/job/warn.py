"""What is probably not meant in a job that can run: ``check``, ``run`` and ``job submit`` show it, and go on.

Reads of the environment are found in the source, not by importing the modules again in an empty environment. An import runs the
user's code a second time, with its side effects and its seconds (pyspark, pandas). It needs a guess at what the environment of a
peer holds. And it only finds what raises: ``os.environ.get("TOPIC", "test")`` imports well and gives peers another value.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from sardonyx.core.errors import Failure
from sardonyx.core.spec import JobSpec
from sardonyx.core.text import listed
from sardonyx.job import bundle
from sardonyx.job.warn_keyed import warnings_of_keyed
from sardonyx.job.warn_relations import warnings_of_relations
from sardonyx.job.warn_windows import warnings_of_windows
from sardonyx.runtime.environment_reads import environment_reads

MOST_ROWS = 10_000_000
"""Rows of a batch above which ``batch_size`` is warned about.

A batch is one Kafka transaction: it must be read, worked on and committed within ``peer.transaction_timeout``, 30 s by default.
Over a link we measured some 350,000 rows a second (``docs/performance.md``), which is about 10 million rows in 30 s. A larger
batch cannot be committed in time, however much memory the machine has.
"""


def warnings_of(spec: JobSpec, root: Path) -> list[Failure]:
    """Everything to warn about, in the order of the catalog and of the modules' names.

    Args:
        spec: a valid job.
        root: the folder from which the job's own modules are imported.
    """
    environment = _environment(spec, root) if spec.code is not None else ()
    with_state = (*warnings_of_windows(spec), *warnings_of_relations(spec), *warnings_of_keyed(spec))
    return [*_batch_sizes(spec), *_orders(spec), *with_state, *environment]


def _batch_sizes(spec: JobSpec) -> Iterator[Failure]:
    for task in spec.catalog:
        if task.rows_per_batch > MOST_ROWS:
            yield Failure(
                "SX-WARN-BATCH-SIZE",
                f"task {task.name!r}: batch_size is {task.rows_per_batch:,} rows, which no batch will reach",
                cause="batch_size counts rows, not bytes. A batch is held in memory, and is one transaction, which must end "
                "within peer.transaction_timeout (30 s unless set)",
                fix=f"give at most {MOST_ROWS:,} rows; to put all rows of a job together, do it where its output is read",
                where={"task": task.name},
            )


def _orders(spec: JobSpec) -> Iterator[Failure]:
    for task in spec.catalog:
        if task.consumption == "sequential" and spec.partitions > 1:
            yield Failure(
                "SX-WARN-ORDER",
                f"task {task.name!r}: sequential means one peer at a time, not one order of all rows",
                cause=f"the job's queues have {spec.partitions} partitions each, and rows keep their order only within one",
                fix="if the order of all rows matters, give the job partitions=1, and topics with one partition",
                where={"task": task.name},
            )


def _environment(spec: JobSpec, root: Path) -> Iterator[Failure]:
    """Reads of the environment in the modules that peers import: those that the job names, and what they import of its own."""
    for path in _imported(spec, root):
        reads = environment_reads(path.read_bytes())
        if not reads:
            continue
        names = listed(dict.fromkeys(read.variable or "a variable" for read in reads))
        required = any(read.required for read in reads)
        yield Failure(
            "SX-WARN-ENVIRONMENT",
            f"{path.name} reads {names} from the environment when it is imported",
            cause="peers import this module without your environment: "
            + ("there the import fails" if required else "there the value may be another one")
            + ", unless the variable is set where they run",
            fix="read it in a function `def job() -> Job:`, which only the client calls, and pass values to functions in params",
            where={"path": str(path), "line": str(reads[0].line), "variable": reads[0].variable},
        )


def _imported(spec: JobSpec, root: Path) -> list[Path]:
    """The job's own modules that an import of what it names runs, in the order of their names."""
    own = bundle.top_level(root)
    waiting = [reference.partition(":")[0] for reference in spec.references()]
    found: dict[str, Path] = {}
    while waiting:
        module = waiting.pop()
        if module in found or module.partition(".")[0] not in own:
            continue
        if "." in module:  # importing a.b imports a first
            waiting.append(module.rpartition(".")[0])
        plain = root / Path(*module.split("."))
        path = plain / "__init__.py" if plain.is_dir() else plain.with_suffix(".py")
        if path.is_file():
            found[module] = path
            waiting += _names_imported(path.read_bytes(), module if plain.is_dir() else module.rpartition(".")[0])
    return [path for _, path in sorted(found.items())]


def _names_imported(source: bytes, package: str) -> Iterator[str]:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)
