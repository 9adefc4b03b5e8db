"""The airports of the United States in eight regions, by k-means: a function that is called round after round.

    sardonyx run examples/kmeans/job.py

    airports -> place -> regions -> out    (CSV, a row for each airport)

A region begins at an airport, and has its name. In each round all airports go to the region whose centre is nearest, and the
centres move to the middle of their airports, until no airport changes its region any more.
"""

import os

import airport_data
import numpy as np
import pyarrow as pa

from sardonyx import Job, files

FIRST = {
    "ANC": (61.17, -150.00),
    "ATL": (33.64, -84.43),
    "DFW": (32.90, -97.04),
    "HNL": (21.32, -157.92),
    "JFK": (40.64, -73.78),
    "LAX": (33.94, -118.41),
    "ORD": (41.98, -87.90),
    "SEA": (47.45, -122.31),
}


def on_sphere(lat, lon):
    """Where degrees are on a sphere, so that distances hold everywhere, also beyond the 180th meridian."""
    lat, lon = np.radians(lat), np.radians(lon)
    return {"x": np.cos(lat) * np.cos(lon), "y": np.cos(lat) * np.sin(lon), "z": np.sin(lat)}


def place(airports: pa.Table) -> pa.Table:
    """The airports with their places in space."""
    for name, column in on_sphere(airports["lat"].to_numpy(), airports["lon"].to_numpy()).items():
        airports = airports.append_column(name, pa.array(column))
    return airports.select(["faa", "name", "lat", "lon", "x", "y", "z"])


def nearest(airports: pa.Table, aggregates: pa.Table) -> pa.Table:
    """The region of each airport; ``aggregates`` are the centres, a row for each region."""
    places, centres = (np.column_stack([table[name] for name in "xyz"]) for table in (airports, aggregates))
    distances = ((places[:, None] - centres[None]) ** 2).sum(axis=2)
    return pa.table({"region": aggregates["region"].take(pa.array(distances.argmin(axis=1)))})


def make_job(out: str | None = None) -> Job:
    """The job.

    Args:
        out: the folder for the results; KMEANS_OUT in the environment, or ``out``.
    """
    out = out or os.environ.get("KMEANS_OUT", "out")
    job = Job("airports", partitions=2, doc="The airports of the United States in eight regions")
    source = files(airport_data.unpack(), format="csv", header=True, schema=airport_data.SCHEMA)
    placed = job.task("place", place, after=job.input("airports", source))
    regions = job.iterate(
        "regions",
        nearest,
        rows=placed,
        state="region string",
        group_by="region",
        aggregate={"x": "mean", "y": "mean", "z": "mean"},
        start=[{"region": region, **on_sphere(*degrees)} for region, degrees in FIRST.items()],
        max_rounds=100,
    )
    target = files(f"{out}/regions", format="csv", header=True, mode="overwrite")
    job.output("out", target, after=regions)
    return job


job = make_job
"""What ``sardonyx run`` looks for: a Job, or a function that makes one."""
