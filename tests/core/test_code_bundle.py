"""Code bundles: the modules that travel with a job, imported so that no two jobs get in each other's way."""

from __future__ import annotations

import gc
import hashlib
import io
import sys
import threading
import traceback
import weakref
import zipfile
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from peer.preparation import assemble
from sardonyx import State
from sardonyx.core.errors import FunctionError, SetupError
from sardonyx.core.events import LinkFacts
from sardonyx.core.graph import graph_of
from sardonyx.core.keyed import KeyedSpec
from sardonyx.core.notes import Assignment
from sardonyx.core.spec import JobSpec, TaskSpec
from sardonyx.runtime.functions import takes
from sardonyx.runtime.settings import load_settings
from spark_tasks import code, keyed_worker
from spark_tasks.code import CodeBundle
from spark_tasks.failures import shown_traceback
from spark_tasks.keyed_worker import KeyedPlan, run_keyed


def file_of(name: str) -> str:
    """``pkg__sub`` stands for pkg/sub.py, ``pkg__init__`` for pkg/__init__.py."""
    folder, found, module = name.partition("__")
    return f"{folder}/__init__.py" if module == "init__" else f"{folder}/{module}.py" if found else f"{name}.py"


def zipped(**modules: str) -> tuple[bytes, str]:
    """A zip of modules and its sha256."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, source in modules.items():
            archive.writestr(file_of(name), source)
    data = buffer.getvalue()
    return data, hashlib.sha256(data).hexdigest()


def opened(cache: Path, **modules: str) -> CodeBundle:
    data, sha256 = zipped(**modules)
    return CodeBundle.open(data, sha256, cache)


def test_two_bundles_may_have_modules_of_one_name(tmp_path: Path) -> None:
    """Two jobs in one process each get their own ``job`` and their own ``helpers``, whichever came first."""
    loaded = set(sys.modules)
    job = "import helpers\ndef fn(row: dict) -> dict:\n    return helpers.who()\n"
    one = opened(tmp_path, job=job, helpers="def who():\n    return 'one'\n")
    two = opened(tmp_path, job=job, helpers="def who():\n    return 'two'\n")
    assert one.load("job:fn")({}) == "one"
    assert two.load("job:fn")({}) == "two"
    assert one.load("job:fn")({}) == "one"
    assert {"helpers", "job"} & (set(sys.modules) - loaded) == set()


@pytest.mark.parametrize(
    ("statement", "expression"),
    [
        ("import helpers", "helpers.x"),
        ("import helpers as h", "h.x"),
        ("from helpers import x", "x"),
        ("from helpers import *", "x"),
        ("from helpers import x as y", "y"),
        ("import pkg.sub", "pkg.sub.x + pkg.base"),
        ("import pkg.sub as s", "s.x"),
        ("import os, pkg.sub, helpers as h", "pkg.sub.x + h.x + len(os.sep)"),
        ("from pkg import sub", "sub.x"),
        ("from pkg.sub import x", "x"),
        ("from pkg import sub as s, base", "s.x + base"),
        ("import json", "len(json.dumps(1))"),
        ("import loose.sub", "loose.sub.x"),
    ],
)
@pytest.mark.parametrize("inside", [False, True])
def test_every_form_of_import_finds_the_bundle_first(
    tmp_path: Path, statement: str, expression: str, inside: bool
) -> None:
    """Import statements at the top of a module and inside a function give what they give in a plain program."""
    files = {
        "helpers": "x = 1\n",
        "pkg__init__": "base = 10\n",
        "pkg__sub": "from . import base\nfrom .. import helpers\nx = base + helpers.x\n",
        "loose__sub": "x = 5\n",  # a folder without __init__.py
    }
    plain = {**files, "pkg__sub": "from pkg import base\nimport helpers\nx = base + helpers.x\n"}
    head, body = ("", f"    {statement}\n") if inside and "*" not in statement else (f"{statement}\n", "")
    source = f"{head}def fn(row: dict) -> dict:\n{body}    return {expression}\n"
    for name, text in plain.items():
        path = tmp_path / "plain" / file_of(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    expected: dict[str, object] = {}
    before = set(sys.modules)
    sys.path.insert(0, str(tmp_path / "plain"))
    try:
        exec(source, expected)  # noqa: S102 (our own source, to see what Python makes of it)
        wanted = expected["fn"]({})  # type: ignore[operator]
    finally:
        sys.path.remove(str(tmp_path / "plain"))
        for name in set(sys.modules) - before:
            del sys.modules[name]
    assert opened(tmp_path, job=source, **files).load("job:fn")({}) == wanted
    assert not {"helpers", "pkg", "loose"} & set(sys.modules)


def test_modules_may_import_each_other_in_a_circle(tmp_path: Path) -> None:
    """A circle that works in a plain program works in a bundle."""
    bundle = opened(
        tmp_path,
        job="import helpers as h\ndef fn(row: dict) -> dict:\n    return h.double(2)\ndef two():\n    return 2\n",
        helpers="import job\ndef double(n):\n    return n * job.two()\n",
    )
    assert bundle.load("job:fn")({}) == 4


def test_a_module_is_named_and_found_as_the_user_knows_it(tmp_path: Path) -> None:
    """``__file__`` is a path inside the zip, and a function's parameters are read from its source as anywhere else."""
    source = (
        "from __future__ import annotations\nfrom typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from pyspark.sql import DataFrame\n"
        "def fn(rows: DataFrame) -> DataFrame:\n    return rows\n"
    )
    bundle = opened(tmp_path, job=source)
    fn = bundle.load("job:fn")
    assert fn.__globals__["__file__"] == f"{tmp_path}/{bundle.sha256}.zip/job.py"
    assert takes(fn) == "dataframe"


def test_a_traceback_shows_the_users_lines_and_names(tmp_path: Path) -> None:
    """A traceback has the source lines and the file names of the folder that the bundle was made of."""
    bundle = opened(
        tmp_path,
        job="import helpers\ndef fn(row: dict) -> dict:\n    return helpers.ratio(row)\n",
        helpers="def ratio(row):\n    return row['a'] / row['b']\n",
    )
    with pytest.raises(ZeroDivisionError) as raised:
        bundle.load("job:fn")({"a": 1, "b": 0})
    assert "return row['a'] / row['b']" in "".join(traceback.format_exception(raised.value))
    shown = shown_traceback(raised.value)
    assert 'File "job.py", line 3, in fn' in shown
    assert 'File "helpers.py", line 2, in ratio' in shown
    assert "_sx_" not in shown


def test_the_content_must_be_what_the_spec_says(tmp_path: Path) -> None:
    """Bytes or a file with another hash are refused, and so is what is no zip; nothing of them is kept."""
    data, sha256 = zipped(job="x = 1\n")
    with pytest.raises(SetupError) as raised:
        CodeBundle.open(data + b"x", sha256, tmp_path)
    assert raised.value.code == "SX-CODE-HASH"
    path = tmp_path / "some.zip"
    path.write_bytes(b"no zip")
    with pytest.raises(SetupError) as raised:
        CodeBundle.open(path, hashlib.sha256(b"no zip").hexdigest())
    assert raised.value.code == "SX-CODE-HASH"
    assert [entry.name for entry in tmp_path.iterdir()] == ["some.zip"]


def test_a_bundle_that_is_far_larger_unpacked_is_refused(tmp_path: Path) -> None:
    """A few KiB in ZooKeeper must not take a peer's memory."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("jobs.py", b"#" * (65 << 20))
    content = packed.getvalue()
    assert len(content) < 100_000
    with pytest.raises(SetupError, match="SX-CODE-LARGE"):
        CodeBundle.open(content, hashlib.sha256(content).hexdigest(), tmp_path)


def test_a_damaged_copy_in_the_cache_is_replaced(tmp_path: Path) -> None:
    """A half-written file in the cache is not trusted because of its name."""
    data, sha256 = zipped(job="def fn(row: dict) -> dict:\n    return row\n# damaged\n")
    (tmp_path / f"{sha256}.zip").write_bytes(data[:10])
    CodeBundle.open(data, sha256, tmp_path)
    assert (tmp_path / f"{sha256}.zip").read_bytes() == data


@pytest.mark.parametrize(
    ("source", "reference", "said"),
    [
        ("import no_such_module_anywhere\n", "job:fn", "No module named 'no_such_module_anywhere'"),
        ("from helpers import nothing\n", "job:fn", "cannot import name 'nothing' from 'helpers'"),
        ("1 / 0\n", "job:fn", "ZeroDivisionError: division by zero"),
        ("def fn(:\n", "job:fn", "SyntaxError"),
        ("x = 1\n", "job:fn", "module 'job' has no function 'fn'"),
        ("x = 1\n", "job.sub:fn", "'job.sub:fn' cannot be imported"),
        ("raise SystemExit(3)\n", "job:fn", "SystemExit: 3"),
    ],
)
def test_what_does_not_import_says_so_in_the_users_words(
    tmp_path: Path, source: str, reference: str, said: str
) -> None:
    """One error with the user's traceback; our own names for modules appear nowhere."""
    bundle = opened(tmp_path, job=source, helpers="x = 1\n")
    with pytest.raises(FunctionError) as raised:
        bundle.load(reference)
    error = raised.value
    assert error.code == "SX-FN-IMPORT"
    assert said in error.message
    assert "_sx_" not in f"{error} {error.traceback} {error.where}"
    assert "spark_tasks" not in error.traceback
    assert error.where["function"] == reference
    if source.startswith("1 / 0"):
        assert 'File "job.py", line 1' in error.traceback


def test_installed_modules_are_found_too(tmp_path: Path) -> None:
    """A reference to a module that the bundle lacks is looked up among the installed packages."""
    assert opened(tmp_path, job="x = 1\n").load("json:dumps")({}) == "{}"


def test_many_threads_open_and_load_at_once(tmp_path: Path) -> None:
    """Every thread gets the same function, and the module runs once."""
    data, sha256 = zipped(job="calls = []\ncalls.append(1)\ndef fn(row: dict) -> dict:\n    return calls\n")
    found: list[object] = []
    failpoint = threading.Barrier(16)

    def load() -> None:
        failpoint.wait()
        found.append(CodeBundle.open(data, sha256, tmp_path).load("job:fn"))

    threads = [threading.Thread(target=load) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 16
    assert len(set(map(id, found))) == 1
    assert found[0]({}) == [1]  # type: ignore[operator]


def test_a_bundle_that_nothing_uses_is_freed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bundle goes only when nothing has used it for a while: its modules with it. A function that still runs keeps working."""
    bundle = opened(
        tmp_path, job="import helpers\ndef fn(row: dict) -> dict:\n    return helpers.who()\n", helpers=_COUNTS
    )
    fn, user = bundle.load("job:fn"), _User()
    bundle.users.add(user)
    with monkeypatch.context() as patch:
        patch.setattr(code, "UNUSED", 0.0)
        code.free_unused(of_worker=True)  # those of tests before this one, which may be long ago; this one has a user
    assert f"{bundle.package}.helpers" in sys.modules
    assert code.free_unused(of_worker=True) == 0, "it was used just now"
    monkeypatch.setattr(code, "UNUSED", 0.0)
    code.free_unused(of_worker=True)
    assert f"{bundle.package}.helpers" in sys.modules, "an object uses it"
    del user
    assert code.free_unused(of_worker=True) >= 1
    assert not [name for name in sys.modules if name.startswith(bundle.package)]
    assert fn({}) == 1
    again = CodeBundle.open(tmp_path / f"{bundle.sha256}.zip", bundle.sha256)
    assert again is not bundle
    assert again.load("job:fn")({}) == 1, "its modules were imported anew"
    assert fn({}) == 2


def test_the_code_of_a_task_without_functions_stays_as_long_as_the_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An output of the user's own needs a further module only when it seals, hours after it was made: it finds it, whatever other
    tasks the daemon has taken meanwhile. When the task is over, its code goes.
    """
    bundle = opened(tmp_path, job=_SEALS, helpers=_COUNTS)
    read = TaskSpec(name="read", type="input", connector="kafka", options={"topic": "in"})
    write = TaskSpec(name="write", type="output", connector="job:Output")
    graph = graph_of(JobSpec(name="own", workflow=[("read", "write")], catalog=[read, write]), "d", "own-1")
    facts = {link.name: LinkFacts(1) for link in graph.links}
    assignment = Assignment(id=1, job="own-1", task="write", slot=0)
    work = assemble(
        load_settings(deployment="d"), None, "p", assignment, graph, facts, bundle, cast("Any", lambda _: None)
    )
    monkeypatch.setattr(code, "UNUSED", 0.0)
    code.free_unused()
    (sink,) = work.sinks
    cast("Any", sink)._staging.output.seal([])
    assert f"{bundle.package}.helpers" in sys.modules
    work.abandon()
    assert code.free_unused() >= 1
    assert not [name for name in sys.modules if name.startswith(bundle.package)]


_SEALS = """\
class Output:
    def __init__(self, job: str, task: str) -> None: ...
    def stage(self, rows) -> list: ...
    def publish(self, entries) -> None: ...
    def seal(self, entries) -> None:
        import helpers
        helpers.who()
"""


def test_a_freed_bundle_leaves_nothing_with_a_worker_that_kept_state_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its modules have loaded, such as a model, is gone from the memory of a worker, also if its functions have states of a
    type of its own. Otherwise each new version of a job would make the workers larger.
    """
    bundle = opened(tmp_path, job=_KEEPS)
    assert run_keyed(_plan_of(bundle), []) == []
    model = weakref.ref(bundle.load("job:MODEL"))
    del bundle
    monkeypatch.setattr(code, "UNUSED", 0.0)
    assert code.free_unused(of_worker=True) >= 1
    gc.collect()
    assert model() is None


def test_a_worker_makes_the_signature_of_a_function_with_state_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many batches come; also for a function of an installed module."""
    made: list[str] = []
    makes = keyed_worker.signature_of

    def counted(*given: Any) -> Any:
        made.append(given[1].__name__)
        return makes(*given)

    monkeypatch.setattr(keyed_worker, "signature_of", counted)
    plan = _plan_of(opened(tmp_path, job=_KEEPS))
    own = msgspec.structs.replace(plan, bundle=None, fn=f"{__name__}:keeps")
    for _ in range(3):
        run_keyed(plan, [])
        run_keyed(own, [])
    assert made == ["count", "keeps"]


def keeps(row: dict, n: State[int]) -> None:
    """Has a state."""


def _plan_of(bundle: CodeBundle) -> KeyedPlan:
    return KeyedPlan(
        task="count",
        fn="job:count",
        on_timer=None,
        bundle=bundle.package,
        spec=KeyedSpec(),
        declared=None,
        schema=None,
        params={},
        may_skip=True,
        first_fails=False,
    )


_KEEPS = """\
from __future__ import annotations
from dataclasses import dataclass
from sardonyx import State

class Model:
    def __call__(self) -> None: ...

MODEL = Model()

@dataclass
class Account:
    total: float = 0.0

def count(row: dict, account: State[Account]) -> None: ...
"""


class _User:
    pass


_COUNTS = "calls = []\ndef who():\n    calls.append(1)\n    return len(calls)\n"
