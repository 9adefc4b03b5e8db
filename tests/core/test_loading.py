"""From a SPEC argument to a valid job with its code."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from sardonyx.core.errors import JobInvalid, SardonyxError, SpecUnreadable
from sardonyx.core.spec import encode_spec
from sardonyx.job.load import load
from sardonyx.runtime.functions import check_reference

JOB = """
import pyarrow as pa
from sardonyx import Job, files, kafka
import flight_helpers

def clean(flights: pa.Table) -> pa.Table:
    return flights

job = Job("flights")
raw = job.input("read", files("flights.csv", format="csv", header=True, schema="carrier string, delay double"))
ok = job.task("clean", clean, after=raw)
tagged = job.task("label", flight_helpers.label, after=ok, max_peers=2, batch_size=20_000, params={"late": 15})
job.output("write", files("out", format="parquet"), after=tagged)
job.output("publish", kafka("flights-out", format="json", key="carrier"), after=[tagged, "clean"])
"""

YAML = """
name: flights
workflow:
  - [read, clean]
  - [clean, label]
  - [label, write]
  - [label, publish]
  - [clean, publish]
catalog:
  - name: read
    type: input
    connector: files
    options: {path: flights.csv, format: csv, header: true, schema: "carrier string, delay double"}
  - {name: clean, type: function, fn: "flights_job:clean"}
  - {name: label, type: function, fn: "flight_helpers:label", max_peers: 2, batch_size: 20_000, params: {late: 15}}
  - {name: write, type: output, connector: files, options: {path: out, format: parquet}}
  - {name: publish, type: output, connector: kafka, options: {topic: flights-out, key: carrier}}
"""

TOML = """
name = "flights"
workflow = [["read", "clean"], ["clean", "label"], ["label", "write"], ["clean", "publish"], ["label", "publish"]]

[[catalog]]
name = "read"
type = "input"
connector = "files"
options = {path = "flights.csv", format = "csv", header = true, schema = "carrier string, delay double"}

[[catalog]]
name = "clean"
type = "function"
fn = "flights_job:clean"

[[catalog]]
name = "label"
type = "function"
fn = "flight_helpers:label"
max_peers = 2
batch_size = 20_000
params = {late = 15}

[[catalog]]
name = "write"
type = "output"
connector = "files"
options = {path = "out", format = "parquet"}

[[catalog]]
name = "publish"
type = "output"
connector = "kafka"
options = {topic = "flights-out", key = "carrier"}
"""


@pytest.fixture
def folder(tmp_path):
    """A job in three languages, with a helper module and its input."""
    for name, text in {
        "flights_job.py": JOB,
        "flights.yaml": YAML,
        "flights.toml": TOML,
        "flight_helpers.py": "def label(row: dict, *, late: int) -> dict:\n    return row\n",
        "flights.csv": "delay,carrier\n1.5,AA\n",
    }.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def failing(argument, kind=SpecUnreadable, **options) -> SardonyxError:
    with pytest.raises(kind) as caught:
        load(str(argument), **options)
    return caught.value


def test_a_python_file(folder):
    """Paths become absolute against the file; the code is a zip of the modules beside it, known by its hash."""
    loaded = load(str(folder / "flights_job.py"))
    assert loaded.base_dir == folder
    assert loaded.spec.task("read").options["path"] == str(folder / "flights.csv")
    assert loaded.spec.task("write").options["path"] == str(folder / "out")
    assert loaded.spec.task("clean").fn == "flights_job:clean"
    assert loaded.spec.task("label").fn == "flight_helpers:label"
    assert loaded.code is not None
    assert loaded.spec.code == hashlib.sha256(loaded.code).hexdigest()
    assert zipfile.ZipFile(io.BytesIO(loaded.code)).namelist() == ["flight_helpers.py", "flights_job.py"]
    assert str(folder) not in sys.path


def test_the_same_job_in_every_language_is_the_same_data(folder, monkeypatch):
    """Python, YAML, TOML, standard input and a module give byte-identical specs."""
    wanted = encode_spec(load(str(folder / "flights_job.py")).spec)
    assert encode_spec(load(str(folder / "flights.yaml")).spec) == wanted
    assert encode_spec(load(str(folder / "flights.toml")).spec) == wanted
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "stdin", io.StringIO(YAML))
    assert encode_spec(load("-").spec) == wanted
    assert encode_spec(load("flights_job.py:job").spec) == wanted
    assert encode_spec(load("flights_job:job").spec) == wanted
    assert encode_spec(load("flights_job").spec) == wanted


def test_a_function_called_job_reads_the_environment(folder, monkeypatch):
    """``def job()`` is called by the client, and by it only: importing the module needs nothing from the environment."""
    monkeypatch.setenv("FLIGHTS_TOPIC", "late-flights")
    definition, _, body = JOB.partition('job = Job("flights")')
    body = body.replace("job.", "made.").replace('"flights-out"', 'os.environ["FLIGHTS_TOPIC"]')
    indented = "".join(f"    {line}\n" for line in body.splitlines())
    text = f'import os\n{definition}\ndef job() -> Job:\n    made = Job("flights")\n{indented}    return made\n'
    (folder / "flights_job.py").write_text(text)
    loaded = load(f"{folder}/flights_job.py")
    assert loaded.spec.task("publish").options["topic"] == "late-flights"
    assert loaded.warnings == ()
    monkeypatch.delenv("FLIGHTS_TOPIC")
    (folder / "flights_job.py").write_text(text.replace("return made", "pass"))
    monkeypatch.setenv("FLIGHTS_TOPIC", "late-flights")
    error = failing(folder / "flights_job.py")
    assert (error.code, error.fix) == ("SX-SPEC-NO-JOB", "let job() return the Job")


def test_a_function_that_makes_the_job(folder):
    """``job`` may be a function without arguments: it is called by the client only."""
    text = (
        JOB.replace('job = Job("flights")', 'def make():\n    return job\n\njob = Job("flights")') + "\njob_2 = make\n"
    )
    (folder / "flights_job.py").write_text(text)
    assert load(f"{folder}/flights_job.py:job_2").spec == load(f"{folder}/flights_job.py").spec


@pytest.mark.parametrize(
    "workflow",
    [
        "{read: {clean: [publish, {label: [write, publish]}]}}",
        "{read: clean, clean: [label, publish], label: {write: [], publish: []}}",
        "{read: {clean: {label: write}}, clean: publish, label: [publish]}",
    ],
)
def test_a_workflow_may_be_a_nested_map(folder, workflow):
    """``{in: {inc: out}}``, as Onyx writes it, gives the same spec as the list of edges, in YAML and in JSON."""
    wanted = encode_spec(load(str(folder / "flights.yaml")).spec)
    start, _, rest = YAML.partition("workflow:")
    text = f"{start}workflow: {workflow}\n{rest[rest.index('catalog:') :]}"
    (folder / "nested.yaml").write_text(text)
    assert encode_spec(load(str(folder / "nested.yaml")).spec) == wanted
    (folder / "nested.json").write_text(json.dumps(yaml.safe_load(text)))
    assert encode_spec(load(str(folder / "nested.json")).spec) == wanted


def test_a_nested_workflow_in_toml(folder):
    """A table of tables is a nested map, too."""
    catalog = TOML[TOML.index("[[catalog]]") :]
    workflow = '[workflow.read]\nclean = ["publish", {label = ["write", "publish"]}]'
    (folder / "nested.toml").write_text(f'name = "flights"\n{workflow}\n{catalog}')
    assert encode_spec(load(str(folder / "nested.toml")).spec) == encode_spec(load(str(folder / "flights.toml")).spec)


@pytest.mark.parametrize(
    ("workflow", "says"),
    [
        ({"read": {"clean": 3}}, "after 'clean' comes a task, a list of tasks or a map of them, not int (3)"),
        ({"read": None}, "after 'read' comes a task, a list of tasks or a map of them, not nothing"),
        ("read -> clean", "workflow is a list of edges or a nested map, not str ('read -> clean')"),
        ([["read", "clean", "write"]], "an edge is a pair of tasks, not list (['read', 'clean', 'write'])"),
    ],
)
def test_a_workflow_that_cannot_be_read_is_one_problem(folder, workflow, says):
    """It says how a workflow is written; tasks are not also reported as unlinked."""
    data = {**yaml.safe_load(YAML), "workflow": workflow}
    (folder / "flights.json").write_text(json.dumps(data))
    (problem,) = failing(folder / "flights.json", JobInvalid).problems
    assert says in problem.message
    assert "{read: {clean: write}}" in problem.fix


def test_two_jobs_with_helpers_of_one_name(folder, tmp_path_factory):
    """Each job gets the modules beside its own spec, also in one process."""
    load(str(folder / "flights_job.py"))
    other = tmp_path_factory.mktemp("other")
    for file in folder.glob("*.*"):
        (other / file.name).write_text(file.read_text())
    (other / "flight_helpers.py").write_text("def label(rows: list, *, late: int): ...\n")
    assert failing(other / "flights_job.py", JobInvalid).code == "SX-FN-ANNOTATION"
    load(str(folder / "flights_job.py"))


def test_two_jobs_of_which_one_is_in_a_folder_of_the_other(tmp_path):
    """A module that the job in the inner folder has imported is not taken for the one beside the outer job, and the reverse."""
    spec = "name = 'copy'\nfrom sardonyx import Job, blackhole, generator\nimport namesake\njob = Job(name)\n"
    spec += "job.output('b', blackhole(), after=job.input('a', generator(namesake.ROWS)))\n"
    for folder, rows in ((tmp_path, 1), (tmp_path / "inner", 2)):
        folder.mkdir(exist_ok=True)
        (folder / "copy_job.py").write_text(spec)
        (folder / "namesake.py").write_text(f"ROWS = {rows}\n")
    for _ in range(2):
        for path, rows in (("inner/copy_job.py", 2), ("copy_job.py", 1)):
            assert load(str(tmp_path / path)).spec.task("a").options["count"] == rows


def test_a_job_without_code_of_its_own(folder):
    """Functions from installed packages, or none at all, bring no zip."""
    (folder / "copy.yaml").write_text(
        "name: copy\nworkflow: [[a, b]]\ncatalog:\n"
        "- {name: a, type: input, connector: generator, options: {count: 5}}\n"
        "- {name: b, type: output, connector: blackhole}\n"
    )
    loaded = load(str(folder / "copy.yaml"))
    assert (loaded.code, loaded.spec.code) == (None, None)


def test_a_job_handed_over_in_python(folder):
    """A script that runs as ``__main__`` hands its own job over: names, paths and code are as from its file."""
    script = JOB + "\nfrom sardonyx.job.load import load\nfrom sardonyx.core.spec import encode_spec\n"
    script += "if __name__ == '__main__':\n    import sys\n    sys.stdout.buffer.write(encode_spec(load(job).spec))\n"
    (folder / "flights_job.py").write_text(script)
    ran = subprocess.run(
        [sys.executable, folder / "flights_job.py"], capture_output=True, check=True, timeout=60, cwd="/"
    )
    assert ran.stdout == encode_spec(load(str(folder / "flights_job.py")).spec)


def test_a_package_finds_its_root(folder, monkeypatch):
    """A job in a package is imported, and bundled, from the folder that the package lies in."""
    package = folder / "our_jobs"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "flights.py").write_text(JOB.replace("import flight_helpers", "from our_jobs import flight_helpers"))
    (package / "flight_helpers.py").write_text((folder / "flight_helpers.py").read_text())
    (package / "flights.csv").write_text("delay,carrier\n")
    monkeypatch.chdir(folder)
    loaded = load("our_jobs.flights:job")
    assert loaded.base_dir == package
    assert loaded.spec.task("label").fn == "our_jobs.flight_helpers:label"
    assert "our_jobs/flights.py" in zipfile.ZipFile(io.BytesIO(loaded.code)).namelist()


def test_a_folder_that_is_no_package_is_named(folder):
    """A function in a folder without __init__.py would not travel; the error comes before a peer finds out."""
    (folder / "plain_folder").mkdir()
    (folder / "plain_folder" / "helpers.py").write_text("def f(row: dict): ...\n")
    (folder / "flights.yaml").write_text(YAML.replace("flights_job:clean", "plain_folder.helpers:f"))
    error = failing(folder / "flights.yaml", JobInvalid)
    assert error.code == "SX-JOB-CODE-NO-PACKAGE"
    assert "__init__.py" in error.fix


@pytest.mark.parametrize(
    "argument", ["nowhere.py", "nowhere.yaml", "nowhere.toml", "nowhere.json", "nowhere_at_all:job", "what is this"]
)
def test_a_missing_spec(argument, folder, monkeypatch):
    """It says what was looked for, and what a spec may be."""
    monkeypatch.chdir(folder)
    error = failing(argument)
    assert error.code == "SX-SPEC-MISSING"
    assert "a spec is" in error.fix


def test_a_missing_spec_names_the_nearest(folder):
    """A mistyped file name is held against what lies there."""
    assert "did you mean 'flights_job.py'" in failing(folder / "flihgts_job.py").message


def test_a_module_without_job(folder):
    """It says which jobs there are instead."""
    path = folder / "flights_job.py"
    path.write_text(JOB.replace("job = ", "flights = ").replace("job.", "flights."))
    error = failing(path)
    assert error.code == "SX-SPEC-NO-JOB"
    assert "it has the jobs flights" in error.cause
    assert error.fix == "name it: flights_job.py:flights"
    assert "did you mean 'flights'" in failing(f"{path}:fligths").message
    assert "not a Job but str" in failing(f"{path}:__name__").message
    path.write_text("")
    assert "there is no Job at the top level" in failing(path).cause


def test_a_spec_that_raises(folder):
    """The user's own traceback comes with it, beginning at the user's first frame."""
    path = folder / "flights_job.py"
    path.write_text("def f():\n    return [][1]\n\n\nf()\n")
    error = failing(path)
    assert error.code == "SX-SPEC-RAISED"
    lines = error.traceback.splitlines()
    assert lines[0].startswith("Traceback")
    assert "flights_job.py" in lines[1]
    assert lines[-1] == "IndexError: list index out of range"
    path.write_text("import sys\nsys.exit(3)\n")
    assert failing(path).code == "SX-SPEC-RAISED"
    path.write_text("from sardonyx import Job\njob = Job()\n")
    assert "job = Job()" in failing(path).traceback


def test_a_spec_that_does_not_parse(folder):
    """Python, YAML and TOML: the file and the line."""
    (folder / "flights_job.py").write_text("x = 1\njob = = 2\n")
    error = failing(folder / "flights_job.py")
    assert (error.code, "line 2" in error.message) == ("SX-SPEC-SYNTAX", True)
    assert "job = = 2" in error.traceback
    for name, text in {
        "flights.yaml": "name: flights\n  workflow: [",
        "flights.toml": "name = \nx",
        "twice.yaml": "name: flights\nname: fights\n",
    }.items():
        (folder / name).write_text(text)
        error = failing(folder / name)
        assert error.code == "SX-SPEC-SYNTAX"
        assert "line" in error.cause
    (folder / "flights.yaml").write_bytes(b"\xff\xfe")
    assert failing(folder / "flights.yaml").code == "SX-SPEC-SYNTAX"


@pytest.mark.parametrize("join", ["list", "merge"])
def test_aliases_of_yaml_cannot_fill_the_memory(folder, join):
    """A few lines that stand for a billion values are refused, and one that stands for itself; anchors as people use them are
    what they name.
    """
    whole = "{name: flights, workflow: [[read, write]], x: *j}"
    lines = ["a: &a {u: 1, v: 2}"]
    for one, next_one in zip("abcdefghi", "bcdefghij", strict=True):
        many = ", ".join([f"*{one}"] * 10)
        lines.append(f"{next_one}: &{next_one} " + (f"[{many}]" if join == "list" else f"{{<<: [{many}]}}"))
    path = folder / "flights.yaml"
    path.write_text("\n".join([*lines, f"spec: {whole}"]))
    error = failing(path)
    assert (error.code, "its aliases stand for more than 100,000 values" in error.cause) == ("SX-SPEC-SYNTAX", True)
    path.write_text("name: flights\nworkflow: &w [*w]\n")
    assert "an alias stands for what it is part of" in failing(path).cause
    path.write_text(YAML + "\n")
    wanted = encode_spec(load(str(path)).spec)
    path.write_text(YAML.replace("name: flights", "name: &name flights", 1) + "\n")
    assert encode_spec(load(str(path)).spec) == wanted


@pytest.mark.parametrize(("name", "text"), [("deep.json", "[{}]"), ("deep.yaml", "[{}]"), ("deep.toml", "x = [{}]")])
def test_a_spec_that_is_nested_without_end_is_refused(folder, name, text):
    """With the file's name, and not with the traceback of a parser."""
    many = 20_000
    (folder / name).write_text(text.format("[" * many + "]" * many))
    error = failing(folder / name)
    assert (error.code, error.cause) == ("SX-SPEC-SYNTAX", "it is nested too deeply")


@pytest.mark.parametrize("name", ["json.py", "my job.py", "a.b.py", "queues.py"])
def test_names_that_peers_could_not_import(tmp_path, name):
    """A file that would hide another module, or has no importable name, is refused."""
    (tmp_path / name).write_text(JOB)
    assert failing(tmp_path / name).code == "SX-SPEC-NAME"


@pytest.mark.parametrize("name", ["queues", "peer", "coordinator", "sentinel", "spark_tasks", "sardonyx"])
@pytest.mark.parametrize("is_package", [False, True])
def test_a_file_beside_a_job_cannot_hide_a_package_of_ours(folder, name, is_package):
    """A helper with the name of one of our packages is refused before anything is imported, whatever the spec is."""
    helper = folder / name / "__init__.py" if is_package else folder / f"{name}.py"
    helper.parent.mkdir(exist_ok=True)
    helper.write_text("raise RuntimeError('this must not be imported')\n")
    for spec in ("flights_job.py", "flights.yaml"):
        error = failing(folder / spec)
        assert (error.code, error.where["path"]) == (
            "SX-SPEC-NAME",
            str(folder / (f"{name}/" if is_package else f"{name}.py")).rstrip("/"),
        )
        assert f"Sardonyx itself has a package called {name}" in error.cause


def test_a_file_that_cannot_hold_a_job_is_not_taken_for_a_module(folder, monkeypatch):
    """A data file, a JSON file that holds no job, and a folder: each is named for what it is."""
    monkeypatch.chdir(folder)
    error = failing("flights.csv")
    assert (error.code, error.message) == (
        "SX-SPEC-NO-JOB",
        f"{folder / 'flights.csv'} is a .csv file, which cannot hold a job",
    )
    (folder / "orders.json").write_text('[{"id": 1}]')
    (problem,) = failing("orders.json", JobInvalid).problems
    assert "a job is a mapping with name, workflow and catalog, not list" in problem.message
    (folder / "orders.json").write_text('{"name": "a", "name": "b"}')
    assert "the key 'name' is there twice" in failing("orders.json").cause
    assert "flights_job.py" in failing(".").cause


def test_a_missing_import_in_a_job_names_the_users_file(folder):
    """The message says which file, and what is missing."""
    path = folder / "flights_job.py"
    path.write_text("import nosuchmodule\n")
    error = failing(path)
    assert error.code == "SX-SPEC-RAISED"
    assert error.message == f"your file {path} raised ModuleNotFoundError: No module named 'nosuchmodule'"
    assert error.fix.startswith("install it here and where the peers run")


def test_yaml_is_strict(folder):
    """Unknown keys are errors that name the nearest known one; all at once, with the other problems."""
    text = (
        YAML.replace("workflow:", "worflow:").replace("max_peers", "max_pers").replace("key: carrier", "kee: carrier")
    )
    (folder / "flights.yaml").write_text(text.replace("name: write, type: output", "name: write, type: sink"))
    text = str(failing(folder / "flights.yaml", JobInvalid))
    for part in ("did you mean 'workflow'", "did you mean 'max_peers'", "did you mean 'key'", "type cannot be 'sink'"):
        assert part in text, part
    for content in ("", "[1, 2]", "catalog: 5", "catalog: [5]"):
        (folder / "flights.yaml").write_text(content)
        assert failing(folder / "flights.yaml", JobInvalid).code == "SX-JOB-FIELD"


def test_places_are_looked_at_unless_told_not_to(folder):
    """A missing input is reported together with everything else."""
    (folder / "flights.csv").unlink()
    (folder / "flights.yaml").write_text(YAML.replace("batch_size: 20_000", "batch_size: 0"))
    codes = [problem.code for problem in failing(folder / "flights.yaml", JobInvalid).problems]
    assert codes == ["SX-JOB-BATCH", "SX-INPUT-MISSING"]
    assert load(str(folder / "flights_job.py"), places=False).spec.name == "flights"


def test_a_path_that_the_system_does_not_take_is_an_error_of_its_task(folder):
    """Its name is too long, or this user may not look there; of an output, others may."""
    long = "a" * 300
    (folder / "flights.yaml").write_text(
        YAML.replace("flights.csv", f"{long}.csv").replace("path: out", f"path: {long}")
    )
    problems = failing(folder / "flights.yaml", JobInvalid).problems
    assert [problem.code for problem in problems] == ["SX-INPUT-UNREADABLE", "SX-OUTPUT-WRITE"]
    assert [problem.where["task"] for problem in problems] == ["read", "write"]


def test_an_output_that_only_peers_may_look_at_is_left_to_them(folder, monkeypatch):
    (folder / "out").mkdir()
    listed = Path.iterdir

    def iterdir(path):
        if path.name == "out":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    assert load(str(folder / "flights.yaml")).spec.name == "flights"


def test_a_spec_on_standard_input_that_is_no_text_is_refused(folder, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"name: caf\xe9"), encoding="utf-8"))
    assert failing("-").code == "SX-SPEC-SYNTAX"


def test_a_function_of_a_cell_is_told_what_a_notebook_can_do() -> None:
    """It is in no file, so no peer can import it; `%%writefile` makes one of its cell."""
    wrong = check_reference("<interactive>:late")
    assert wrong is not None
    assert (wrong.code, "%%writefile" in wrong.fix) == ("SX-FN-NAME", True)
    other = check_reference("job:<lambda>")
    assert other is not None
    assert "%%writefile" not in other.fix
