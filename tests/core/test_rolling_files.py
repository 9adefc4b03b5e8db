"""Files with the rows of several batches: exactly what was committed, once, whatever ends in the middle of whatever."""

from __future__ import annotations

import contextlib
import csv
import errno
import gzip
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import structlog

from sardonyx.connectors.declarations import files, problems_of
from sardonyx.connectors.files import disk
from sardonyx.connectors.files.output import FilesOutput
from sardonyx.connectors.files.roll import DEFAULT, Entry, Listing, Roll, Rolled, decode
from sardonyx.connectors.files.rolling import RollingFiles
from sardonyx.connectors.registry import output
from sardonyx.core.errors import InternalError, OutputError
from sardonyx.core.spec import TaskSpec

STEPS = ("make_folder", "write", "rename", "sync", "remove", "remove_empty", "remove_tree")


class WorldEnds(BaseException):
    """What a crash looks like from inside: no code catches it."""


def out(folder: Path, **options) -> RollingFiles:
    """A fresh object each time: a successor process knows only the spec and the listing."""
    given = {"path": str(folder), "format": "json", "roll": "100 B or 1 min", **options}
    made = output(TaskSpec(name="write", type="output", connector="files", options=given), "job-1")
    assert isinstance(made, RollingFiles)
    return made


def rows(*numbers: int) -> pa.Table:
    return pa.table({"n": pa.array(numbers, pa.int64())})


def visible(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith(("_", "."))) if folder.is_dir() else []


def numbers(folder: Path) -> list[int]:
    return sorted(json.loads(line)["n"] for path in visible(folder) for line in path.read_text().splitlines())


def roll(folder: Path, listed: list[bytes], *, ended: bool = True, now: float = 0.0, **options) -> Rolled | None:
    """What the peer that merges does, as a successor would: the listing is read anew, and the merge is committed to it."""
    made, listing = out(folder, **options), Listing(listed)
    if listing.last is not None:
        made.finish(listing.last, listing.merged, again=True)
    made.tidy(listing)
    chunks = [chunk.entry for chunk in listing.due(made.roll, now, ended=ended)]
    if not chunks:
        return None
    merged = made.merge(chunks)
    files_before, rows_before = listing.totals()
    taken = chunks[: merged.chunks]
    rolled = Rolled(
        merged.file, taken[-1].staged, files_before + merged.files, rows_before + sum(each.rows for each in taken)
    )
    listed.append(msgspec.json.encode(rolled))  # the commit
    made.finish(rolled, taken)
    return rolled


def test_several_batches_become_one_file(tmp_path):
    """Rows are seen when the file is complete: not with the commit of their batch. Chunks go when the file is there."""
    listed = [entry for n in range(5) for entry in out(tmp_path).stage(rows(n))]
    out(tmp_path).publish(listed)
    assert numbers(tmp_path) == []
    rolled = roll(tmp_path, listed)
    assert rolled is not None
    assert (rolled.files, rolled.rows) == (1, 5)
    assert [path.name for path in visible(tmp_path)] == [rolled.file]
    assert numbers(tmp_path) == list(range(5))
    assert list((tmp_path / "_sardonyx" / "job-1" / "write").iterdir()) == []
    assert roll(tmp_path, listed) is None


def test_a_file_is_complete_by_size_or_by_age():
    """The oldest chunks make a file once they are large enough together, or the oldest of them is old enough."""
    listing = Listing()
    for number in range(4):
        listing.add(b'{"staged":"c%d","final":"c%d","rows":1,"size":40}' % (number, number), number, 100.0 + number)
    by_size = Roll.parse("100 B or 5 min")
    assert [chunk.offset for chunk in listing.due(by_size, 104.0, ended=False)] == [0, 1, 2]
    assert listing.due(Roll.parse("1 MiB or 5 min"), 104.0, ended=False) == []
    assert len(listing.due(Roll.parse("1 MiB or 5 min"), 400.0, ended=False)) == 4
    assert len(listing.due(Roll.parse("1 MiB or 5 min"), 104.0, ended=True)) == 4
    assert listing.due(Roll.parse("5 min"), 399.0, ended=False) == []


def test_a_listing_that_was_cut_says_the_same():
    """The first part of a listing goes when a later merge has taken its place. Earlier merges among the rest change nothing."""
    listing = Listing()
    chunks = [b'{"staged":"c%d","final":"c%d","rows":1}' % (number, number) for number in range(6)]
    merges = [b'{"file":"f%d","last":"c%d","files":%d,"rows":%d}' % (n, 2 * n - 1, n, 2 * n) for n in (1, 2)]
    whole = [*chunks[:3], merges[0], *chunks[3:], merges[1]]
    for kept in (
        whole,
        whole[2:],
    ):  # the position of the second merge is its first chunk, which comes before the first merge
        listing = Listing(kept)
        assert [chunk.entry.staged for chunk in listing.pending] == ["c4", "c5"]
        assert listing.last == Rolled("f2", "c3", 2, 4)
        assert [entry.staged for entry in listing.merged] == ["c2", "c3"]
    with pytest.raises(InternalError, match="outside its folder"):
        listing.add(b'{"file":"../f","last":"c","files":1,"rows":1}')


@pytest.mark.parametrize("seed", range(24))
def test_a_crash_after_any_step_loses_and_doubles_nothing(tmp_path, monkeypatch, seed):
    """Batches commit and files are merged, while the process ends after any change to the disk, also between commit and
    publishing, also before the commit. At no time a reader sees a row twice; at the end each committed row is there once. A
    killed job ends the same as a sealed one.
    """
    chance = random.Random(seed)
    folder = tmp_path / "out"
    listed: list[bytes] = []
    committed: list[int] = []
    count = 0

    def crashing(step: Callable) -> Callable:
        def run(*args):
            if chance.random() < 0.04:
                raise WorldEnds
            result = step(*args)
            if chance.random() < 0.04:
                raise WorldEnds
            return result

        return run

    def batch() -> None:
        nonlocal count
        fresh = list(range(count, count + chance.randint(1, 4)))
        count += len(fresh)
        entries = out(folder).stage(rows(*fresh))
        if chance.random() < 0.8:  # otherwise the transaction was aborted
            listed.extend(entries)
            committed.extend(fresh)
            out(folder).publish(entries)

    with monkeypatch.context() as patch:
        for name in STEPS:
            patch.setattr(disk, name, crashing(getattr(disk, name)))
        for _ in range(80):
            with contextlib.suppress(WorldEnds):
                (batch if chance.random() < 0.6 else lambda: roll(folder, listed, ended=chance.random() < 0.3))()
            seen = numbers(folder)
            assert len(set(seen)) == len(seen)
            assert set(seen) <= set(committed)
        end = out(folder).settle if seed % 2 else out(folder).seal
        for _ in range(200):
            try:
                end(listed)
                break
            except WorldEnds:
                seen = numbers(folder)
                assert len(set(seen)) == len(seen)
    end(listed)
    assert numbers(folder) == sorted(committed)
    assert not (folder / "_sardonyx").exists()
    if not seed % 2:
        done = json.loads((folder / "_SUCCESS").read_text())
        assert (done["files"], done["rows"]) == (len(visible(folder)), len(committed))


def test_files_may_be_moved_on(tmp_path):
    """A published file is the reader's: one that is gone is not missed, neither by a successor nor by the seal."""
    listed = out(tmp_path).stage(rows(1))
    roll(tmp_path, listed)
    visible(tmp_path)[0].unlink()
    listed += out(tmp_path).stage(rows(2))
    roll(tmp_path, listed)
    visible(tmp_path)[0].unlink()
    out(tmp_path).seal(listed)
    assert visible(tmp_path) == []


def test_a_chunk_that_is_gone_is_an_error(tmp_path):
    """Rows that were committed are never left out in silence."""
    listed = out(tmp_path).stage(rows(1))
    (chunk,) = (tmp_path / "_sardonyx" / "job-1" / "write").iterdir()
    chunk.unlink()
    for step in (lambda: roll(tmp_path, listed), lambda: out(tmp_path).seal(listed)):
        with pytest.raises(OutputError) as caught:
            step()
        assert caught.value.code == "SX-OUTPUT-LOST"


def test_what_killed_peers_left_is_removed(tmp_path):
    """A merge that was not committed goes at once; a chunk that no commit lists, only when its writer is long dead."""
    listed = out(tmp_path).stage(rows(1))
    old, young = (json.loads(out(tmp_path).stage(rows(9))[0])["staged"] for _ in range(2))
    staging = tmp_path / "_sardonyx" / "job-1" / "write"
    for name in (old, json.loads(listed[0])["staged"]):
        os.utime(staging / name, (1, 1))
    out(tmp_path).merge([chunk.entry for chunk in Listing(listed).pending])
    assert len(list(staging.iterdir())) == 4
    out(tmp_path).tidy(Listing(listed))
    assert sorted(path.name for path in staging.iterdir()) == sorted([json.loads(listed[0])["staged"], young])


def test_parquet_is_written_anew_with_one_schema(tmp_path):
    """A column that is null, or of whole numbers by chance, in some batches has one type in the file."""
    tables = [pa.table({"x": pa.array(values)}) for values in ([None], [1], [2.5])]
    options = {"format": "parquet", "roll": "1 min"}
    listed = [entry for table in tables for entry in out(tmp_path, **options).stage(table)]
    roll(tmp_path, listed, **options)
    (path,) = visible(tmp_path)
    assert pq.ParquetFile(path).num_row_groups == 1
    assert pq.read_table(path)["x"].to_pylist() == [None, 1.0, 2.5]
    assert "sardonyx" not in str(pq.read_schema(path).metadata)


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_types_that_do_not_go_together_make_two_files(tmp_path, kind):
    """A job that runs for months is not ended by a batch of other columns or types: it gets a file of its own."""
    tables = [pa.table({"x": [1]}), pa.table({"x": [2]}), pa.table({"x" if kind == "parquet" else "y": ["text"]})]
    options = {"format": kind, "roll": "1 min"}
    listed = [entry for table in tables for entry in out(tmp_path, **options).stage(table)]
    while roll(tmp_path, listed, **options):
        pass
    assert len(visible(tmp_path)) == 3
    assert Listing(listed).totals() == (3, 3)


@pytest.mark.parametrize("header", [True, False])
def test_csv_has_its_header_once(tmp_path, header):
    """Also if a column's name spans lines."""
    options = {"format": "csv", "header": header, "compression": "gzip"}
    tables = [pa.table({'a "b"\nc': [n], "text": [f"line {n}\nmore"]}) for n in range(3)]
    listed = [entry for table in tables for entry in out(tmp_path, **options).stage(table)]
    roll(tmp_path, listed, **options)
    (path,) = visible(tmp_path)
    assert path.name.endswith(".csv.gz")
    with gzip.open(path, "rt", newline="") as file:
        found = list(csv.reader(file))
    body = [[str(n), f"line {n}\nmore"] for n in range(3)]
    assert found == ([['a "b"\nc', "text"], *body] if header else body)


@pytest.mark.parametrize("codec", ["gzip", "bz2", "zstd", "lz4"])
def test_text_is_compressed_once(tmp_path, codec):
    """A merged file is one stream of its codec. Chunks are not compressed: a killed job leaves them under a plain name."""
    listed = [entry for n in range(3) for entry in out(tmp_path, compression=codec).stage(rows(n))]
    roll(tmp_path, listed, compression=codec)
    (path,) = visible(tmp_path)
    with pa.CompressedInputStream(pa.OSFile(str(path)), codec) as file:
        assert file.read() == b'{"n":0}\n{"n":1}\n{"n":2}\n'
    listed += out(tmp_path, compression=codec).stage(rows(7))
    out(tmp_path, compression=codec).settle(listed)
    (plain,) = (each for each in visible(tmp_path) if each != path)
    assert (plain.suffix, plain.read_text()) == (".json", '{"n":7}\n')


def of_old_release(folder: Path, **options) -> FilesOutput:
    """What a peer of the release without roll writes with."""
    given = {"path": str(folder), "format": "json", **options}
    return output(TaskSpec(name="write", type="output", connector="files", options=given), "job-1")


@pytest.mark.parametrize(
    "options", [{"format": "csv"}, {"format": "json", "compression": "gzip"}, {"format": "json"}, {"format": "parquet"}]
)
@pytest.mark.parametrize("published", ["before", "meanwhile", "after", "never"])
def test_a_file_of_the_release_without_roll_is_not_joined(tmp_path, options, published):
    """Its text has a header and is compressed, so it becomes a file of its own. Its peer may publish it at any time, or die: its
    rows are there once, and it sees no file as lost.
    """
    old = of_old_release(tmp_path, **options)
    listed = out(tmp_path, **options).stage(rows(1, 2)) + (theirs := old.stage(rows(3)))
    listed += out(tmp_path, **options).stage(rows(4))
    made, listing = out(tmp_path, **options), Listing(listed)
    if published == "before":
        old.publish(theirs)
    chunks = [chunk.entry for chunk in listing.pending]
    merged = made.merge(chunks)
    if published == "meanwhile":
        old.publish(theirs)
    made.finish(Rolled(merged.file, chunks[-1].staged, merged.files, 4), chunks)
    if published == "after":
        old.publish(theirs)
    assert (merged.chunks, merged.files, len(visible(tmp_path))) == (3, 2, 2)
    found = [pa.table({"n": read_anything(path)}) for path in visible(tmp_path)]
    assert sorted(len(each) for each in found) == [1, 3]
    assert sorted(pa.concat_tables(found)["n"].to_pylist()) == [1, 2, 3, 4]


def read_anything(path: Path) -> list[int]:
    """The column n of a result file."""
    if path.suffix == ".parquet":
        return pq.read_table(path)["n"].to_pylist()
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
    if ".csv" in path.suffixes:
        return [int(row["n"]) for row in csv.DictReader(text.splitlines())]
    return [json.loads(line)["n"] for line in text.splitlines()]


@pytest.mark.parametrize("kind", [out, of_old_release], ids=["roll", "file by file"])
def test_settling_goes_on_after_readers_have_moved_files(tmp_path, monkeypatch, kind):
    """The coordinator dies while it publishes what a killed job has committed, and readers take what they see. The next
    coordinator publishes the rest, also with one file lost, and says how many it does not find.
    """
    listed = [entry for number in range(6) for entry in kind(tmp_path).stage(rows(number))]
    rename, left = disk.rename, iter(range(3))

    def dies(source: Path, target: Path) -> bool:
        if next(left, None) is None:
            raise WorldEnds
        return rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(disk, "rename", dies)
        with pytest.raises(WorldEnds):
            kind(tmp_path).settle(listed)
    taken = numbers(tmp_path)
    assert taken == [0, 1, 2]
    for path in visible(tmp_path):
        path.unlink()
    (tmp_path / "_sardonyx" / "job-1" / "write" / json.loads(listed[3])["staged"]).unlink()
    with structlog.testing.capture_logs() as said:
        kind(tmp_path).settle(listed)
    assert numbers(tmp_path) == [4, 5]
    assert not (tmp_path / "_sardonyx").exists()
    assert [line["count"] for line in said if line["event"] == "committed_files_missing"] == [4]


@pytest.mark.parametrize(
    ("number", "code"),
    [(errno.ENOSPC, "SX-OUTPUT-FULL"), (errno.ESTALE, "SX-OUTPUT-AWAY"), (errno.EACCES, "SX-OUTPUT-WRITE")],
)
def test_what_cannot_be_published_stays_staged(tmp_path, monkeypatch, number, code):
    """A settling that the disk refuses removes nothing, and succeeds when it is repeated."""
    listed = [entry for number in range(3) for entry in out(tmp_path).stage(rows(number))]

    def refused(_source: Path, _target: Path) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", refused)
        with pytest.raises(OutputError) as caught:
            out(tmp_path).settle(listed)
    assert caught.value.code == code
    assert out(tmp_path).out_of_sight(listed) == 0
    out(tmp_path).settle(listed)
    assert numbers(tmp_path) == [0, 1, 2]
    shutil.rmtree(tmp_path)
    assert out(tmp_path).out_of_sight(listed) == 3


def test_a_share_that_is_not_mounted_does_not_count_as_published(tmp_path):
    """Its folder is empty then, and a file that is not there would be taken for one that a reader has moved on. It would stay
    staged, and be removed as abandoned a day later.
    """
    share, away = tmp_path / "share", tmp_path / "away"

    def unmounted(call: Callable[[], object]) -> None:
        share.rename(away)
        share.mkdir()
        with pytest.raises(OutputError) as caught:
            call()
        assert caught.value.code == "SX-OUTPUT-AWAY"
        share.rmdir()
        away.rename(share)
        call()

    each = RollingFiles({"path": str(share), "format": "json"}, "job-1", "write", Roll.parse("batch"))
    entries = each.stage(rows(1))
    unmounted(lambda: each.publish(entries))
    chunks = [entry for entry in map(decode, each.stage(rows(2))) if isinstance(entry, Entry)]
    unmounted(lambda: each.merge(chunks))
    merging = RollingFiles({"path": str(share), "format": "json"}, "job-1", "write", Roll(1, 0.0))
    chunks = [entry for entry in map(decode, merging.stage(rows(3))) if isinstance(entry, Entry)]
    merged = merging.merge(chunks)
    rolled = Rolled(merged.file, chunks[-1].staged, 1, 1)
    unmounted(lambda: merging.finish(rolled, chunks))
    shutil.rmtree(share / "_sardonyx")  # a peer that takes over finds a task that was sealed, but for its last step
    merging.finish(rolled, chunks, again=True)
    assert sorted(json.loads(path.read_text())["n"] for path in share.glob("part-*")) == [1, 2, 3]


def test_a_folder_may_be_removed_by_two_at_a_time(tmp_path, monkeypatch):
    """A file that another process removes first does not keep the rest."""
    for name in "abc":
        (tmp_path / "gone" / name).mkdir(parents=True)
        (tmp_path / "gone" / name / "file").touch()
    unlink = os.unlink

    def after_another(path, **given) -> None:
        unlink(path, **given)
        unlink(path, **given)

    monkeypatch.setattr(os, "unlink", after_another)
    disk.remove_tree(tmp_path / "gone")
    assert not (tmp_path / "gone").exists()
    disk.remove_tree(tmp_path / "gone")


def test_by_batch_nothing_waits(tmp_path):
    """Each batch publishes its file at its commit. The listing is cut all the same, and a dead peer's file is published then."""
    listed = out(tmp_path, roll="batch").stage(rows(1))
    out(tmp_path, roll="batch").publish(listed)
    assert numbers(tmp_path) == [1]
    listed += out(tmp_path, roll="batch").stage(rows(2))  # its peer died before it published
    rolled = roll(tmp_path, listed, roll="batch")
    assert rolled is not None
    assert (rolled.file, rolled.files, rolled.rows) == ("", 2, 2)
    assert numbers(tmp_path) == [1, 2]
    out(tmp_path, roll="batch").seal(listed)
    assert json.loads((tmp_path / "_SUCCESS").read_text())["rows"] == 2


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ("128 MiB", "no time"),
        ("soon", "not a size"),
        ("128 MiB or never", "not a duration"),
        ("5 min or 128 MiB", "not a size"),
        ("0 s", "more than 0"),
        ("1 B or 1 s or 1 s", "not a duration"),
        ("", "not a size"),
    ],
)
def test_a_wrong_roll_is_told(given, wrong):
    """With the values that it may have."""
    (problem,) = problems_of("files", "output", files("x", format="json", roll=given).options)
    assert problem.code == "SX-JOB-CONNECTOR"
    assert wrong in problem.cause
    assert '"128 MiB or 5 min"' in problem.fix


def test_roll_does_not_go_with_overwrite():
    """One publishes while the job runs, the other when it has ended."""
    (problem,) = problems_of("files", "output", files("x", format="json", roll="5 min", mode="overwrite").options)
    assert "overwrite" in problem.message
    assert problems_of("files", "input", files("x", format="csv", roll="5 min").options)


def test_only_a_job_that_never_ends_rolls_by_default(tmp_path):
    """A bounded job lists all its files, and unifies them at its end."""
    task = TaskSpec(name="write", type="output", connector="files", options={"path": str(tmp_path), "format": "json"})
    assert not isinstance(output(task, "job-1"), RollingFiles)
    made = output(task, "job-1", bounded=False)
    assert isinstance(made, RollingFiles)
    assert made.roll == Roll.parse(DEFAULT) == Roll(128 << 20, 60.0)
