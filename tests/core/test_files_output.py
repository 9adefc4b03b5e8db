"""Output files: exactly what was committed, once, whatever ends in the middle of whatever."""

import errno
import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from sardonyx.connectors.files import disk
from sardonyx.connectors.files.output import FilesOutput
from sardonyx.connectors.files.written import rows_in
from sardonyx.connectors.registry import output
from sardonyx.core.errors import OutputError
from sardonyx.core.spec import TaskSpec

FORMATS = ("parquet", "json", "csv")
STEPS = ("make_folder", "write", "rename", "sync", "remove", "remove_empty", "remove_tree")


class WorldEnds(BaseException):
    """What a crash looks like from inside: no code catches it."""


def out(folder: Path, job: str = "job-1", task: str = "write", **options) -> FilesOutput:
    """A fresh object each time: a successor process knows only the spec and the entries."""
    spec = TaskSpec(
        name=task, type="output", connector="files", options={"path": str(folder), "format": "parquet", **options}
    )
    found = output(spec, job)
    assert isinstance(found, FilesOutput)
    return found


def rows(*numbers: int) -> pa.Table:
    return pa.table({"n": pa.array(numbers, pa.int64())})


def visible(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith(("_", ".")))


def numbers(folder: Path) -> list[int]:
    """What a reader of the folder finds, in order of value."""
    return sorted(
        n for name in visible(folder) for n in pq.read_table(folder / name, partitioning=None)["n"].to_pylist()
    )


def test_nothing_is_seen_before_it_is_published(tmp_path):
    """Staged files are hidden from readers; publishing makes exactly the listed ones visible."""
    first = out(tmp_path).stage(rows(1, 2))
    aborted = out(tmp_path).stage(rows(9))
    assert visible(tmp_path) == []
    assert len(first) == len(aborted) == 1
    assert len(first[0]) < 1024
    out(tmp_path).publish(first)
    assert numbers(tmp_path) == [1, 2]
    out(tmp_path).seal(first)
    assert numbers(tmp_path) == [1, 2]
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(("_", "."))) == ["_SUCCESS"]


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_job_that_is_ended_early_leaves_nothing_aside(tmp_path, mode):
    """What was committed and could not be published any more is in place; with ``overwrite`` what was there stays."""
    before = out(tmp_path, "job-0").stage(rows(7))
    out(tmp_path, "job-0").seal(before)
    committed = out(tmp_path, mode=mode).stage(rows(1))
    out(tmp_path, mode=mode).stage(rows(9))  # its transaction was aborted
    assert out(tmp_path, mode=mode).unsettled
    out(tmp_path, mode=mode).settle(committed)
    assert not out(tmp_path, mode=mode).unsettled
    assert numbers(tmp_path) == ([1, 7] if mode == "append" else [7])
    assert not (tmp_path / "_sardonyx").exists()


def test_publishing_again_changes_nothing(tmp_path):
    """By the same peer or by a successor, before the seal and after it."""
    entries = out(tmp_path).stage(rows(1)) + out(tmp_path).stage(rows(2))
    out(tmp_path).publish(entries[:1])
    out(tmp_path).publish(entries)
    out(tmp_path).seal(entries)
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    out(tmp_path).publish(entries)
    out(tmp_path).seal(entries)
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before
    assert json.loads((tmp_path / "_SUCCESS").read_text()) == {"job": "job-1", "task": "write", "files": 2, "rows": 2}


@pytest.mark.parametrize("mode", ["error", "append", "overwrite"])
def test_no_rows_give_just_the_mark(tmp_path, mode):
    """An output without rows is complete and empty, also if the folder was not there."""
    folder = tmp_path / "a" / "b"
    assert out(folder).stage(rows()) == []
    out(folder, mode=mode).seal([])
    assert [path.name for path in folder.iterdir()] == ["_SUCCESS"]


def test_a_committed_file_that_is_gone_is_an_error(tmp_path):
    """Rows that were committed are never left out in silence."""
    entries = out(tmp_path).stage(rows(1))
    out(tmp_path).publish(entries)
    (tmp_path / visible(tmp_path)[0]).unlink()
    for step in (out(tmp_path).publish, out(tmp_path).seal):
        with pytest.raises(OutputError, match="with 1 rows is lost") as caught:
            step(entries)
        assert caught.value.code == "SX-OUTPUT-LOST"


def old_folder(folder: Path) -> None:
    """A folder as Spark leaves it, with a partition, a link out of it, and something hidden."""
    (folder / "k=1" / "deep").mkdir(parents=True)
    for name in ("part-0.parquet", "k=1/part-1.parquet", "k=1/deep/part-2.parquet", "_SUCCESS"):
        (folder / name).write_bytes(b"old")
    (folder / "_kept").write_text("hidden")
    outside = folder.parent / "outside"
    outside.mkdir(exist_ok=True)
    (outside / "precious").write_text("not ours")
    (folder / "link").symlink_to(outside)


def test_overwrite_keeps_the_old_until_the_new_is_complete(tmp_path):
    """Old files stand until the seal, and then go; nothing outside of the folder, hidden in it or behind a link does."""
    folder = tmp_path / "out"
    old_folder(folder)
    entries = out(folder, mode="overwrite").stage(rows(1)) + out(folder, mode="overwrite").stage(rows(2))
    out(folder, mode="overwrite").publish(entries)
    assert visible(folder) == ["k=1", "link", "part-0.parquet"]
    out(folder, mode="overwrite").seal(entries)
    assert (folder / "link").is_symlink()
    (folder / "link").unlink()
    assert numbers(folder) == [1, 2]
    assert (folder / "_kept").exists()
    assert (tmp_path / "outside" / "precious").read_text() == "not ours"


def test_a_late_sealer_does_not_undo_a_later_job(tmp_path):
    """A peer that seals again after another job has replaced or extended the result removes nothing of it."""
    first = out(tmp_path, "job-1", mode="overwrite").stage(rows(1))
    out(tmp_path, "job-1", mode="overwrite").seal(first)
    second = out(tmp_path, "job-2", mode="append").stage(rows(2))
    out(tmp_path, "job-2", mode="append").publish(second)
    out(tmp_path, "job-2", mode="append").seal(second)
    out(tmp_path, "job-1", mode="overwrite").seal(first)
    assert numbers(tmp_path) == [1, 2]


@pytest.mark.parametrize("mode", ["error", "overwrite"])
@pytest.mark.parametrize("drift", [False, True])
def test_a_crash_after_any_step_loses_and_doubles_nothing(tmp_path, monkeypatch, mode, drift):
    """The world ends after the n-th change to the disk, for every n; a successor publishes and seals: the same result."""

    def batch(*values: float) -> pa.Table:
        return pa.table({"n": pa.array(values, pa.float64() if drift and 5 in values else pa.int64())})

    def life(folder: Path, entries: list[bytes]) -> None:
        out(folder, mode=mode).publish(entries[:1])
        out(folder, mode=mode).publish(entries)
        out(folder, mode=mode).seal(entries)

    for crash in range(1, 200):
        folder = tmp_path / str(crash) / "out"
        folder.mkdir(parents=True)
        if mode == "overwrite":
            old_folder(folder)
            (folder / "link").unlink()
        entries = [entry for values in ((1, 2), (3,), (4, 5)) for entry in out(folder, mode=mode).stage(batch(*values))]
        out(folder, mode=mode).stage(batch(99))  # of a batch that was never committed
        left = crash

        def counted(step):
            def run(*args):
                nonlocal left
                result = step(*args)
                left -= 1
                if left == 0:
                    raise WorldEnds
                return result

            return run

        ended = True
        with monkeypatch.context() as patch:
            for name in STEPS:
                patch.setattr(disk, name, counted(getattr(disk, name)))
            try:
                life(folder, entries)
            except WorldEnds:
                ended = False
        success = folder / "_SUCCESS"
        if not ended and success.exists() and success.read_bytes() != b"old":
            assert numbers(folder) == [1, 2, 3, 4, 5], "a folder that says it is complete is"
        if mode == "overwrite" and not ended and success.exists() and success.read_bytes() == b"old":
            assert "part-0.parquet" in visible(folder), "what stands with its old mark is whole"
        life(folder, entries)
        assert numbers(folder) == [1, 2, 3, 4, 5]
        assert json.loads(success.read_text())["rows"] == 5
        assert not (folder / "_sardonyx").exists()
        assert {pq.read_schema(folder / name).field("n").type for name in visible(folder)} == {
            pa.float64() if drift else pa.int64()
        }
        if ended:
            break
    assert 8 < crash < 200


@pytest.mark.parametrize("suffix", [".anew", "SUCCESS"])
def test_two_peers_that_seal_at_once_do_not_write_the_same_file(tmp_path, monkeypatch, suffix):
    """One that was stopped may not have heard that another one seals by now. It dies as it writes what the other one renames."""
    entries = out(tmp_path).stage(rows(1)) + out(tmp_path).stage(pa.table({"n": [2.5]}))
    write, rename = disk.write, disk.rename

    def killed(path: Path, data: memoryview | bytes) -> None:
        if suffix in path.name:
            path.open("wb").close()
            raise WorldEnds
        write(path, data)

    def slow(source: Path, target: Path) -> bool:
        if suffix in source.name:
            monkeypatch.setattr(disk, "rename", rename)
            monkeypatch.setattr(disk, "write", killed)
            with pytest.raises(WorldEnds):
                out(tmp_path).seal(entries)
            monkeypatch.setattr(disk, "write", write)
        return rename(source, target)

    monkeypatch.setattr(disk, "rename", slow)
    out(tmp_path).seal(entries)
    assert numbers(tmp_path) == [1.0, 2.5]
    assert json.loads((tmp_path / "_SUCCESS").read_bytes())["rows"] == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["_SUCCESS", *visible(tmp_path)]


def test_a_peer_that_still_stages_does_not_fail_the_seal(tmp_path, monkeypatch):
    """It has lost the task, and has not heard of it: what it writes is not committed, and goes when the job has ended."""
    entries = out(tmp_path).stage(rows(1))
    staged = tmp_path / "_sardonyx" / "job-1" / "write"
    rmdir, late = os.rmdir, [1, 2]

    def after_another(path, **given) -> None:
        if late and Path(str(path)).name == "write":
            (staged / f"part-{late.pop()}").touch()
        rmdir(path, **given)

    monkeypatch.setattr(os, "rmdir", after_another)
    out(tmp_path).seal(entries)
    assert not staged.exists()
    late += range(100)
    entries = out(tmp_path).stage(rows(2))
    with pytest.raises(OutputError, match="another process still writes"):
        out(tmp_path).settle(entries)
    assert out(tmp_path).unsettled
    late.clear()
    out(tmp_path).settle(entries)
    assert not out(tmp_path).unsettled
    assert numbers(tmp_path) == [1, 2]


def test_a_job_that_ends_does_not_fail_one_that_begins(tmp_path, monkeypatch):
    """Both write into one folder. The first removes what it finds empty, as the second is about to use it."""
    (tmp_path / "_sardonyx").mkdir()
    mkdir, ends = os.mkdir, [True]

    def after_the_end(path, mode=0o777, **given) -> None:
        if ends and Path(str(path)).name == "job-2":
            ends.pop()
            (tmp_path / "_sardonyx").rmdir()
        mkdir(path, mode, **given)

    monkeypatch.setattr(os, "mkdir", after_the_end)
    out(tmp_path, "job-2").publish(out(tmp_path, "job-2").stage(rows(1)))
    assert numbers(tmp_path) == [1]


def test_two_outputs_of_a_job_share_a_folder(tmp_path):
    """One that seals leaves what the other has staged."""
    one = out(tmp_path, task="one", mode="append").stage(rows(1))
    other = out(tmp_path, task="other", mode="append").stage(rows(2))
    out(tmp_path, task="one", mode="append").seal(one)
    out(tmp_path, task="other", mode="append").seal(other)
    assert numbers(tmp_path) == [1, 2]


# --- One table --------------------------------------------------------------------------------------------------------


def test_batches_of_differing_types_are_read_as_one(tmp_path):
    """A column null throughout, whole by chance or missing in some batches has one type in all files at the end."""
    batches = [
        pa.table({"a": pa.nulls(2), "b": [1, 2], "s": [{"x": None}, None]}),
        pa.table({"b": [0.5], "a": [{"deep": 1}], "c": pa.nulls(1), "s": [{"x": 7}]}),
        pa.table({"a": pa.nulls(1), "b": pa.array([3], pa.int32())}),
    ]
    entries = []
    for batch in batches:
        entries += out(tmp_path).stage(batch)
        out(tmp_path).publish(entries)
    out(tmp_path).seal(entries)
    schemas = [pq.read_schema(tmp_path / name).remove_metadata() for name in visible(tmp_path)]
    assert schemas[0] == schemas[1] == schemas[2]
    found = pa.concat_tables(pq.read_table(tmp_path / name, partitioning=None) for name in visible(tmp_path))
    assert found.schema.field("c").type == pa.string()
    assert sorted(found["b"].to_pylist()) == [0.5, 1, 2, 3]
    assert [value for value in found["a"].to_pylist() if value] == [{"deep": 1}]


def test_types_that_nothing_can_hold_both_of_fail_the_seal(tmp_path):
    """A result that no reader can read as one table is not called complete, and with overwrite replaces nothing."""
    (tmp_path / "old.parquet").write_bytes(b"old")
    entries = out(tmp_path, mode="overwrite").stage(pa.table({"a": [1]}))
    entries += out(tmp_path, mode="overwrite").stage(pa.table({"a": ["x"]}))
    with pytest.raises(OutputError, match="column 'a' is") as caught:
        out(tmp_path, mode="overwrite").seal(entries)
    assert caught.value.code == "SX-OUTPUT-SCHEMA"
    assert visible(tmp_path) == ["old.parquet"]


def test_csv_files_must_have_the_same_columns(tmp_path):
    """CSV goes by position, so a file with other columns would be misread in silence."""
    entries = out(tmp_path, format="csv").stage(pa.table({"a": [1], "b": [2]}))
    entries += out(tmp_path, format="csv").stage(pa.table({"b": [2], "a": [1]}))
    with pytest.raises(OutputError, match="has other columns"):
        out(tmp_path, format="csv").seal(entries)


def test_two_columns_of_one_name_are_refused(tmp_path):
    """One of them would be lost."""
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    for name in FORMATS:
        with pytest.raises(OutputError, match="two columns named 'a'"):
            out(tmp_path, format=name).stage(table)


# --- What stands in the files -----------------------------------------------------------------------------------------


def test_json_and_csv_as_text(tmp_path):
    """ISO moments with Z, decimals as text, nulls with their key in json; header, quoted texts, empty nulls in csv."""
    from datetime import UTC, datetime
    from decimal import Decimal

    table = pa.table(
        {
            "s": ["a,b", None],
            "t": pa.array([datetime(2013, 1, 1, 10, tzinfo=UTC), None], pa.timestamp("us", "UTC")),
            "m": pa.array([Decimal("1.50"), None]),
        }
    )
    for name, options in (("json", {}), ("csv", {}), ("bare", {"format": "csv", "header": False})):
        folder = tmp_path / name
        entries = out(folder, **{"format": name, **options}).stage(table)
        out(folder, **{"format": name, **options}).seal(entries)
    text = {folder.name: (folder / visible(folder)[0]).read_text() for folder in tmp_path.iterdir()}
    assert text["json"] == ('{"s":"a,b","t":"2013-01-01T10:00:00.000000Z","m":"1.50"}\n{"s":null,"t":null,"m":null}\n')
    assert text["csv"] == '"s","t","m"\n"a,b","2013-01-01T10:00:00.000000Z","1.50"\n,,\n'
    assert text["bare"] == text["csv"].split("\n", 1)[1]


@pytest.mark.parametrize("header", [True, False])
@pytest.mark.parametrize("columns", [1, 2])
def test_who_looks_at_csv_files_sees_each_row(tmp_path, header, columns):
    """With or without a header, and nulls as nulls: `collect` and the end of `sardonyx run` show what was written."""
    texts = [None, "a", "", None, "two\nlines"]
    table = pa.table({f"f{number}": pa.array(texts, pa.string()) for number in range(columns)})
    options = {"format": "csv", "header": header}
    out(tmp_path, **options).seal(out(tmp_path, **options).stage(table))
    assert rows_in(str(tmp_path), options).to_table().to_pylist() == table.to_pylist()


@pytest.mark.parametrize("codec", ["gzip", "zstd", "bz2", "lz4"])
def test_compressed_text(tmp_path, codec):
    """The name tells the compression, so that readers see it."""
    entries = out(tmp_path, format="csv", compression=codec).stage(rows(1, 2))
    out(tmp_path, format="csv", compression=codec).seal(entries)
    (name,) = visible(tmp_path)
    assert pacsv.read_csv(pa.CompressedInputStream(str(tmp_path / name), codec))["n"].to_pylist() == [1, 2]


def test_parquet_compression_and_unknown_codecs(tmp_path):
    """A codec that the format lacks is an error when the task begins."""
    entries = out(tmp_path, compression="zstd").stage(rows(1))
    out(tmp_path, compression="zstd").seal(entries)
    assert pq.ParquetFile(tmp_path / visible(tmp_path)[0]).metadata.row_group(0).column(0).compression == "ZSTD"
    with pytest.raises(OutputError, match="cannot be compressed with 'snappy'") as caught:
        out(tmp_path, format="json", compression="snappy")
    assert caught.value.code == "SX-OUTPUT-CODEC"


# --- A disk that refuses ----------------------------------------------------------------------------------------------


def test_a_path_that_is_no_folder(tmp_path):
    """The error names the path and what the operating system said."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(OutputError, match=r"Not a directory|File exists") as caught:
        out(tmp_path / "file").stage(rows(1))
    assert caught.value.code == "SX-OUTPUT-WRITE"
    assert str(tmp_path / "file") in caught.value.message


def test_a_full_disk(tmp_path, monkeypatch):
    """The error holds what the operating system says, and a fix; no half file is left, and a later try works."""
    import errno
    import os

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OutputError, match="No space left on device") as caught:
            out(tmp_path).stage(rows(1))
    assert caught.value.code == "SX-OUTPUT-FULL"
    assert "ENOSPC" in caught.value.cause
    assert "free space" in caught.value.fix
    assert not list(tmp_path.rglob("part-*"))
    out(tmp_path).seal(out(tmp_path).stage(rows(1)))
    assert numbers(tmp_path) == [1]


@pytest.mark.parametrize("roll", [{}, {"roll": "batch"}, {"roll": "1 min"}])
@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO])
def test_a_share_that_is_away_is_told_by_whatever_meets_it_first(tmp_path, monkeypatch, roll, number):
    """A task waits for it, and so does the coordinator. Most often that is a look at a file, and not the writing of one."""
    entries = out(tmp_path, **roll).stage(rows(1))
    stat = os.stat

    def away(path, *args, **given):
        if str(path).startswith(str(tmp_path)):
            raise OSError(number, os.strerror(number), str(path))
        return stat(path, *args, **given)

    monkeypatch.setattr(os, "stat", away)
    monkeypatch.setattr(os, "lstat", away)
    for call in (
        lambda: out(tmp_path, **roll).stage(rows(1)),
        lambda: out(tmp_path, **roll).seal(entries),
        lambda: out(tmp_path, **roll).settle(entries),
        lambda: out(tmp_path, **roll).publish_left(entries),
        lambda: out(tmp_path, **roll).unsettled,
    ):
        with pytest.raises(OutputError) as caught:
            call()
        assert caught.value.code == "SX-OUTPUT-AWAY"


def test_links_where_we_work_are_not_followed(tmp_path):
    """Nothing is written or removed through a symbolic link in the place of the staging folder."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "_sardonyx").symlink_to(elsewhere)
    with pytest.raises(OutputError, match="is a link"):
        out(folder).stage(rows(1))
    assert list(elsewhere.iterdir()) == []
