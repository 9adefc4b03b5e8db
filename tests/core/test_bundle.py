"""A job's modules as a zip."""

from __future__ import annotations

import io
import os
import sys
import zipfile
from pathlib import Path

import pytest

from sardonyx.core.errors import JobInvalid
from sardonyx.job import bundle
from sardonyx.job.load import load


@pytest.fixture
def folder(tmp_path):
    for name in (
        "job.py",
        "helpers.py",
        "data.csv",
        ".hidden.py",
        "package/__init__.py",
        "package/inner/__init__.py",
        "package/inner/deep.py",
        "package/notes/no_package.py",
        "notes/no_package.py",
        "__pycache__/job.cpython-311.py",
        ".venv/__init__.py",
        "venv/__init__.py",
        "node_modules/__init__.py",
        "build/__init__.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"# {name}\n")
    return tmp_path


def test_it_holds_the_modules_and_packages_beside_the_spec(folder):
    """Modules and, recursively, packages; nothing hidden, installed, built or of another kind."""
    names = zipfile.ZipFile(io.BytesIO(bundle.build(folder).data)).namelist()
    assert names == [
        "helpers.py",
        "job.py",
        "package/__init__.py",
        "package/inner/__init__.py",
        "package/inner/deep.py",
    ]
    assert bundle.top_level(folder) == {"helpers", "job", "package"}


NEEDED = {
    "job.py": "from helpers import rate\n\ndef price(row: dict, model='') -> dict:\n    import late\n    return row\n",
    "helpers.py": "import json\nimport shop.prices\nPLUGIN = 'plugin:run'\nrate = 1\n",
    "shop/__init__.py": "",
    "shop/prices.py": "from . import inner\n",
    "shop/inner.py": "from tables import ALL\n",
    "late.py": "",
    "plugin.py": "",
    "tables.py": "# job, notes and alone\nALL = ['alone', 'notes']\n",
    "given.py": "",
    "alone.py": "import notes\n",
    "notes.py": "import job\n",
    "trials/__init__.py": "import job\n",
}
SPEC = """
name: needs
workflow: {read: {price: out}}
catalog:
  - {name: read, type: input, connector: generator, options: {count: 1}}
  - {name: price, type: function, fn: "job:price", params: {%s}}
  - {name: out, type: output, connector: blackhole}
"""


@pytest.fixture
def own_imports(tmp_path):
    """What is imported from the folder of the test is not there for later tests, whose modules may have the same names."""
    yield
    for name, module in list(sys.modules.items()):
        if Path(getattr(module, "__file__", None) or "/").is_relative_to(tmp_path):
            del sys.modules[name]


@pytest.mark.usefixtures("own_imports")
def test_what_a_job_does_not_need_stays_where_it_is(tmp_path):
    """A module that no function needs does not travel, so `job diff` ignores it. What its modules import travels, too."""
    write(tmp_path, NEEDED)
    spec = tmp_path / "job.yaml"
    spec.write_text(SPEC % "")
    found = load(str(spec))
    everything = {"job", "helpers", "shop", "shop.prices", "shop.inner", "late", "plugin", "tables"}
    assert set(bundle.contents(found.code)) == everything
    write(tmp_path, {"alone.py": "x = 1\n", "new.py": "", "trials/__init__.py": ""})
    assert load(str(spec)).spec.code == found.spec.code
    write(tmp_path, {"tables.py": "ALL = []\n"})
    assert load(str(spec)).spec.code != found.spec.code
    spec.write_text(SPEC % "model: 'given:Model'")
    assert set(bundle.contents(load(str(spec)).code)) == {*everything, "given"}


@pytest.mark.parametrize(
    "text", ["import importlib\n", "import_module = 1\nimport_module('a' + 'b')\n", "exec('import a')\n"]
)
def test_a_module_that_computes_what_it_imports_needs_all(tmp_path, text):
    """Its text does not tell which modules these are. A method that only has the name of such a function does not count."""
    write(tmp_path, {"job.py": text, "a.py": "", "b/__init__.py": ""})
    assert bundle.reached(tmp_path, ["job"]) == {"job", "a", "b"}
    write(tmp_path, {"job.py": "def f(rows): return rows.eval('a')\n"})
    assert bundle.reached(tmp_path, ["job"]) == {"job"}


def write(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def test_the_same_files_give_the_same_bytes(folder, tmp_path_factory):
    """Neither times nor permissions nor the order of creation count, only names and contents."""
    first = bundle.build(folder)
    os.utime(folder / "job.py", (1, 1))
    (folder / "helpers.py").chmod(0o600)
    again = bundle.build(folder)
    assert again == first
    (folder / "job.py").write_text("# changed\n")
    assert bundle.build(folder).sha256 != first.sha256


def test_a_link_back_to_its_own_folder_is_not_followed(folder):
    """A package that links to a folder it is in does not send the bundle round in a circle."""
    (folder / "package" / "again").symlink_to(folder / "package")
    assert bundle.build(folder).data


def test_too_large_names_the_largest_files(folder, rng):
    """Over 768 KiB it is one error that says which files weigh most."""
    noise = rng.randbytes(bundle.MAX_BYTES).hex() * 2
    (folder / "huge.py").write_text("x = '" + noise + "'")
    with pytest.raises(JobInvalid) as caught:
        bundle.build(folder)
    assert caught.value.code == "SX-JOB-CODE-TOO-LARGE"
    assert "huge.py" in caught.value.cause


def test_two_bundles_are_compared_module_by_module_and_text_by_text(tmp_path):
    """Which modules differ, and which functions and classes in them have the same text all the same, comments aside."""
    files = {
        "old/job.py": "import helpers\ndef price(row): return helpers.rate(row)\ndef tax(row): return row\n",
        "new/job.py": "RATE = 2\ndef price(row):  # new\n    return helpers.rate(row)\ndef tax(row): return {}\n",
        "old/helpers.py": "def rate(row): return 1\n",
        "new/helpers.py": "def rate(row): return 1\n",
        "old/shop/__init__.py": "",
        "new/shop/__init__.py": "",
        "old/shop/gone.py": "def f(row): return row\n",
        "new/shop/more.py": "this is no module\n",
    }
    write(tmp_path, files)
    old, new = (bundle.build(tmp_path / version).data for version in ("old", "new"))
    found = bundle.code_change(old, new)
    assert found.own == {"job", "helpers", "shop"}
    assert found.modules == {"job", "shop.gone", "shop.more"}
    assert found.same == {"job:price"}
    assert bundle.code_change(old, old).modules == frozenset()
    assert bundle.code_change(None, new).modules == {"job", "helpers", "shop", "shop.more"}
    assert bundle.code_change(None, None).own == frozenset()
