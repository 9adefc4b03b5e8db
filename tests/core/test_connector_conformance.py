"""Our own connectors, and one of a user's, keep to what every connector must keep to; and one that does not is found out."""

from __future__ import annotations

import json
import sqlite3
import uuid
from contextlib import closing
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet
import pytest
from pyarrow import dataset

from sardonyx.connectors.base import Split
from sardonyx.connectors.custom import CustomInput
from sardonyx.connectors.registry import output, split_input
from sardonyx.core.positions import Position
from sardonyx.core.spec import TaskSpec
from sardonyx.testing.conformance import ROWS, InputSuite, OutputSuite, PositionedOutputSuite


def as_input(connector: str, **options):
    return split_input(TaskSpec(name="in", type="input", connector=connector, options=options))


def as_output(connector: str, **options):
    return output(TaskSpec(name="out", type="output", connector=connector, options=options), "job-1")


class InFolder:
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path


class TestCsvFiles(InFolder, InputSuite):
    def make(self):
        for name, rows in (("a.csv", ROWS[:25]), ("b.csv", ROWS[25:])):
            path = self.folder / name
            if not path.exists():
                path.write_text("".join(f"{row['id']},{row['text'] or ''}\n" for row in rows))
        return as_input(
            "files",
            path=str(self.folder),
            format="csv",
            schema="id bigint, text string",
            split_size="100 B",
            nullValue="",
        )

    def expected(self):
        return ROWS


class TestParquetFiles(InFolder, InputSuite):
    def make(self):
        if not (self.folder / "rows.parquet").exists():
            pa.parquet.write_table(pa.Table.from_pylist(ROWS), self.folder / "rows.parquet", row_group_size=7)
        return as_input("files", path=str(self.folder / "rows.parquet"), format="parquet", split_size="1 B")

    def expected(self):
        return ROWS


class TestGenerator(InputSuite):
    def make(self):
        return as_input("generator", count=10, rate=12, columns={"id": "sequence"})

    def expected(self):
        return [{"id": number} for number in range(10)]


class Table(InFolder, InputSuite):
    """A table of SQLite with nulls and doubled values in each column that it is cut by."""

    ordered = False

    options: ClassVar[dict] = {}

    def make(self):
        path = self.folder / "in.db"
        if not path.exists():
            with closing(sqlite3.connect(path)) as connection, connection:
                connection.execute('create table "or ders" (id bigint, text text, "when" date)')
                values = [(row["id"], row["text"], f"2026-01-{row['id'] % 9 + 1:02}") for row in ROWS]
                connection.executemany('insert into "or ders" values (?, ?, ?)', values)
                connection.execute('insert into "or ders" values (null, null, null)')
        return as_input("sql", url=f"jdbc:sqlite:///{path}", **self.options)

    def expected(self):
        return [*ROWS, {"id": None, "text": None}]


class TestTable(Table):
    options: ClassVar[dict] = {"table": "or ders", "schema": "id bigint, text string"}


class TestTableByNumber(Table):
    options: ClassVar[dict] = {**TestTable.options, "split_by": "id", "splits": 7}


class TestTableByText(Table):
    options: ClassVar[dict] = {**TestTable.options, "split_by": "text", "splits": 5}


class TestTableByDate(Table):
    options: ClassVar[dict] = {**TestTable.options, "split_by": "when", "splits": 20}


class TestQuery(Table):
    options: ClassVar[dict] = {
        "query": """select id, text, ':no parameter' as "a:b" from "or ders" where id < 20;""",
        "schema": "id bigint",
        "split_by": "id",
        "splits": 3,
    }

    def expected(self):
        return [{"id": row["id"]} for row in ROWS[:20]]


class TestParquetOutput(InFolder, OutputSuite):
    mode = "append"

    def make(self):
        return as_output("files", path=str(self.folder / "out"), format="parquet", mode=self.mode)

    def visible(self):
        files = sorted((self.folder / "out").glob("*.parquet"))
        return dataset.dataset(files, format="parquet").to_table().to_pylist() if files else []


class TestParquetOverwritten(TestParquetOutput):
    mode = "overwrite"
    published = False


class TestJsonOutput(InFolder, OutputSuite):
    def make(self):
        return as_output("files", path=str(self.folder / "out"), format="json", mode="append")

    def visible(self):
        return [
            json.loads(line) for file in (self.folder / "out").glob("*.json") for line in file.read_text().splitlines()
        ]


class TestRolledParquet(TestParquetOutput):
    published = False

    def make(self):
        options = {"path": str(self.folder / "out"), "format": "parquet", "roll": "1 MiB or 1 min"}
        return as_output("files", **options)


class TestRolledJson(TestJsonOutput):
    published = False

    def make(self):
        return as_output("files", path=str(self.folder / "out"), format="json", roll="1 min", compression="none")


class TestJsonByBatch(TestJsonOutput):
    def make(self):
        return as_output("files", path=str(self.folder / "out"), format="json", roll="batch")


class TestBlackhole(OutputSuite):
    forgets = True

    def make(self):
        return as_output("blackhole")

    def visible(self):
        return []


class TestConsole(TestBlackhole):
    def make(self):
        return as_output("console", rows=3)


class TestSqliteOutput(InFolder, PositionedOutputSuite):
    options: ClassVar[dict] = {}

    def make(self):
        return as_output("sql", url=f"sqlite:///{self.folder}/out.db", table="rows", **self.options)

    def visible(self):
        with closing(sqlite3.connect(self.folder / "out.db")) as connection:
            if not connection.execute("select 1 from sqlite_master where name = 'rows'").fetchall():
                return []
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute("select * from rows")]


class TestSqliteUpserted(TestSqliteOutput):
    options: ClassVar[dict] = {"mode": "upsert", "key": ["id"]}

    def test_a_row_replaces_the_one_with_its_key(self):
        """Of rows with one key the last stands, within a batch as well as over several."""
        table = pa.table({"id": [1, 2, 1], "text": ["old", "two", "newer"]})
        for start, end in ((None, 1), (1, 2)):
            rows = self.make()
            rows.begin(table, {self.here: start}, {self.here: Position(end)}, None)
            rows.commit()
        assert sorted(row["text"] for row in self.visible()) == ["newer", "two"]


class Lines:
    """A user's own connector: the lines of texts, both ways."""

    def __init__(self, folder: str, job: str = "", task: str = ""):
        self.folder = Path(folder)
        self.aside = self.folder / f".{job}-{task}"

    def splits(self):
        for path in sorted(self.folder.glob("*.txt")):
            yield {"name": path.name}

    def read(self, data):
        return [json.loads(line) for line in (self.folder / data["name"]).read_text().splitlines()]

    def stage(self, table):
        self.aside.mkdir(parents=True, exist_ok=True)
        name = f"{uuid.uuid4().hex}.txt"
        (self.aside / name).write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
        return [name.encode()]

    def publish(self, entries):
        for entry in entries:
            staged = self.aside / entry.decode()
            if staged.exists():
                staged.rename(self.folder / entry.decode())

    def seal(self, entries):
        self.publish(entries)
        for left in self.aside.glob("*"):
            left.unlink()


class TestOwnInput(InFolder, InputSuite):
    def make(self):
        for half, rows in enumerate((ROWS[:20], ROWS[20:])):
            (self.folder / f"{half}.txt").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return as_input(f"{__name__}:Lines", folder=str(self.folder))

    def expected(self):
        return ROWS


class TestOwnOutput(InFolder, OutputSuite):
    def make(self):
        return as_output(f"{__name__}:Lines", folder=str(self.folder))

    def visible(self):
        return [json.loads(line) for path in self.folder.glob("*.txt") for line in path.read_text().splitlines()]


class Wrong(InputSuite):
    """A connector with every fault that a reader has had somewhere: what it gives depends on who asks, and how often."""

    asked = 0

    def make(self):
        return self

    def expected(self):
        return [{"id": 1}, {"id": 2}]

    def splits(self):
        Wrong.asked += 1
        yield Split({"at": (1, Wrong.asked)}, rows=3)

    def read(self, data):
        Wrong.asked += 1
        return pa.table({"id": [1, Wrong.asked]})


def test_a_connector_that_is_wrong_is_found_out():
    """Each promise that it breaks fails its own test, with what was found and what was wanted."""
    broken = []
    for name in (name for name in dir(Wrong) if name.startswith("test_")):
        try:
            getattr(Wrong(), name)()
        except AssertionError:
            broken.append(name)
    assert broken == [
        "test_a_split_is_small_plain_data",
        "test_a_split_reads_the_same_every_time",
        "test_it_travels_to_workers",
        "test_sizes_that_are_told_are_true",
        "test_the_same_splits_are_listed_every_time",
        "test_the_splits_together_are_everything",
    ]


class Custom:
    """An input as a user writes it: a plain dict for a split, a list of dicts for rows."""

    def splits(self):
        yield {"rows": 3}

    def read(self, data):
        return ROWS[: data["rows"]]


class TestCustomInput(InputSuite):
    def make(self):
        return Custom()

    def expected(self):
        return ROWS[:3]


def test_our_connectors_are_tested_as_they_are_and_others_as_a_job_calls_them():
    """A user's class is called through what Sardonyx puts around it; one of ours is not."""

    class Ours(InputSuite):
        def make(self):
            return as_input("generator", count=3)

    assert type(Ours()._connector()) is type(as_input("generator", count=3))
    assert isinstance(TestCustomInput()._connector(), CustomInput)
