"""A job's modules as a zip."""

from __future__ import annotations

import io
import os
import zipfile

import pytest

from sardonyx.core.errors import JobInvalid
from sardonyx.job import bundle


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
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    old, new = (bundle.build(tmp_path / version).data for version in ("old", "new"))
    found = bundle.code_change(old, new)
    assert found.own == {"job", "helpers", "shop"}
    assert found.modules == {"job", "shop.gone", "shop.more"}
    assert found.same == {"job:price"}
    assert bundle.code_change(old, old).modules == frozenset()
    assert bundle.code_change(None, new).modules == {"job", "helpers", "shop", "shop.more"}
    assert bundle.code_change(None, None).own == frozenset()
