"""Which functions are the same in two versions of a job's modules."""

from __future__ import annotations

import io
import zipfile

import pytest

from sardonyx.job.same_code import same_functions

JOB = """
import json
from steady import helper
from package import module
LIMIT = 3

def plain(row):
    return row

def limited(row):
    return row if row["n"] < LIMIT else None

def helped(row):
    return helper(row)

def below(row):
    return module.function(row)

def first(row):
    return second(row) if row else plain(row)

def second(row):
    return first(row)

def late(row):
    from steady import other
    return other(row)

def hidden(row):
    return eval("LIMIT")

job = Job("one")
job.task("plain", plain, after=job.input("read"))
"""
STEADY = (
    "def helper(row):\n    return inner(row)\n\ndef inner(row):\n    return row\n\ndef other(row):\n    return row\n"
)
ALL = {"plain", "limited", "helped", "below", "first", "second", "late"}


def zipped(job: str = JOB, steady: str = STEADY, function: str = "return row", package: str = "BASE = 1") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("job.py", job)
        archive.writestr("steady.py", steady)
        archive.writestr("package/__init__.py", package)
        archive.writestr("package/module.py", f"from . import BASE\ndef function(row):\n    {function}\n")
    return buffer.getvalue()


def same(new: bytes) -> set[str]:
    names = [f"job:{name}" for name in (*ALL, "hidden")]
    return {name.partition(":")[2] for name in same_functions(zipped(), new, names)}


@pytest.mark.parametrize(
    ("new", "others"),
    [
        (zipped(), set()),
        (zipped("# a comment\n" + JOB.replace('"one"', '"two"') + "job.output('more', after='plain')\n"), set()),
        (zipped(JOB + "def more(row):\n    return plain(row)\njob.task('more', more)\n"), set()),
        (zipped(JOB.replace("return row\n", "return None\n", 1)), {"plain", "first", "second"}),
        (zipped(JOB.replace("LIMIT = 3", "LIMIT = 4")), {"limited"}),
        (zipped(JOB + "LIMIT = 4\n"), {"limited"}),
        (zipped(JOB + "if True:\n    LIMIT = 4\n"), {"limited"}),
        (zipped(JOB + "plain.limit = 4\n"), {"plain", "first", "second"}),
        (zipped(JOB + "print('at once')\n"), ALL),
        (zipped(JOB + "from steady import *\n"), ALL),
        (zipped(JOB + "this is no Python"), ALL),
        (zipped(steady=STEADY.replace("return row\n", "return None\n", 1)), {"helped"}),
        (zipped(steady=STEADY + "helper = print\n"), {"helped"}),
        (zipped(steady=STEADY.replace("def other(row):\n    return row", "def other(row):\n    return 1")), {"late"}),
        (zipped(function="return None"), {"below"}),
        (zipped(package="BASE = 2"), {"below"}),
        (zipped(JOB.replace("from package", "from other")), {"below"}),
    ],
)
def test_a_function_is_the_same_if_all_that_it_uses_is(new: bytes, others: set[str]) -> None:
    """Its own text, names of its module, other modules, and those below packages. What tells the job something does not count."""
    assert same(new) == ALL - others


def test_what_is_installed_is_the_same() -> None:
    """Peers have it, and the job's code does not say what it is. A function that only one of the versions has is another one."""
    assert same_functions(zipped(), zipped(), ["installed:function", "job:nothing"]) == {"installed:function"}
    assert same_functions(None, zipped(), ["job:plain", "json:loads"]) == {"json:loads"}
    assert same_functions(zipped(), None, ["job:plain"]) == set()


@pytest.mark.parametrize(
    ("function", "uses"),
    [
        ("def f(rows, /, *more, n=1, **rest):\n    return rows, more, n, rest", False),
        ("def f(row):\n    return [rows for rows in row]", True),  # in doubt it does
        ("def f(rows):\n    return lambda: rows", False),
        ("def f(row, last=rows):\n    return row", True),
        ("def f(rows) -> rows:\n    return rows", True),
        ("def f(row):\n    return (lambda rows: rows)(row), rows", True),
        ("def f(rows):\n    def g():\n        global rows\n        return rows\n    return g", True),
        ("def f(rows):\n    class A:\n        one = rows\n        rows = 1\n    return A", True),
        ("async def f(rows):\n    return rows", False),
    ],
)
def test_a_parameter_is_not_what_its_module_calls_so(function: str, uses: bool) -> None:
    """A function may have a parameter of the same name as a task of the job, which is made anew in each version."""
    one, other = (zipped(f"rows = {number}\n{function}\n") for number in (1, 2))
    assert same_functions(one, other, ["job:f"]) == (set() if uses else {"job:f"})
