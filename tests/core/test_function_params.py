"""Functions among the params of a task: named in the spec, checked, and in the job's code."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import pytest

from sardonyx import Job, JobInvalid, blackhole, generator
from sardonyx.cli.graph_text import describe
from sardonyx.core.graph import graph_of
from sardonyx.core.spec import decode_spec, encode_spec, references_of
from sardonyx.job.load import load, load_job
from sardonyx.runtime.functions import with_functions


def scaled(row: dict, scale: Any, by: int = 1) -> dict:
    return scale(row, by)


def double(row: dict, by: int) -> dict:
    return {**row, "n": row["n"] * 2 * by}


def job(**params: Any) -> Job:
    made = Job("j")
    rows = made.task("scale", scaled, after=made.input("in", generator(1)), params=params)
    made.output("out", blackhole(), after=rows)
    return made


HERE = __name__


def test_a_function_among_the_params_goes_by_its_name() -> None:
    """In the spec, and in YAML; the spec comes back from its bytes."""
    spec = load_job(job(scale=double, by=3)).spec
    task = spec.task("scale")
    assert task.params == {"scale": {"$function": f"{HERE}:double"}, "by": 3}
    assert references_of(task) == [f"{HERE}:scaled", f"{HERE}:double"]
    assert decode_spec(encode_spec(spec)) == spec
    assert load_job(job(scale={"$function": f"{HERE}:double"}, by=3)).spec == spec
    assert f"function {HERE}:scaled with {HERE}:double" in describe(task, graph_of(spec, "d", "j"))


def test_where_it_runs_it_is_the_function() -> None:
    """Loaded as the task's own function; other values stay, mappings among them."""
    params = {"scale": {"$function": "m:f"}, "by": {"$function": 3}, "more": {"$function": "m:f", "x": 1}}
    assert with_functions(params, {"m:f": double}.__getitem__) == {**params, "scale": double}


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (lambda row, _by: row, "SX-FN-NAME"),
        ({"$function": "nowhere:f"}, "SX-FN-IMPORT"),
        ({"$function": f"{HERE}:nothing"}, "SX-FN-IMPORT"),
        ({"$function": "f"}, "SX-FN-NAME"),
        (int, "SX-JOB-PARAMS"),
        ([double], "SX-JOB-PARAMS"),
    ],
)
def test_check_says_what_peers_could_not_import(given: Any, code: str) -> None:
    """As of the task's own function. Classes, and functions deeper in the params, are no plain data."""
    with pytest.raises(JobInvalid) as raised:
        load_job(job(scale=given))
    assert code in {each.code for each in raised.value.problems}
    assert all(each.where.get("task") == "scale" for each in raised.value.problems)


def test_the_module_of_such_a_function_travels_with_the_job(tmp_path: Path) -> None:
    """Also if the task's own function comes from an installed package."""
    (tmp_path / "mine.py").write_text("def add(one: dict, other: dict) -> dict:\n    return one\n")
    (tmp_path / "job.yaml").write_text(
        "name: j\nworkflow: {in: {each: out}}\ncatalog:\n"
        "- {name: in, type: input, connector: generator, options: {count: 1}}\n"
        "- {name: each, type: function, fn: 'sardonyx.pipeline.functions:keep_row',"
        " params: {condition: {$function: 'mine:add'}}}\n"
        "- {name: out, type: output, connector: blackhole}\n"
    )
    code = load(str(tmp_path / "job.yaml")).code
    assert code is not None
    assert zipfile.ZipFile(io.BytesIO(code)).namelist() == ["mine.py"]
