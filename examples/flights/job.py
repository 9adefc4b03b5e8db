"""Every departure from New York in 2013: late ones go to a Kafka topic, the others into Parquet files.

    sardonyx run examples/flights/job.py

    read -> clean -> enrich -+-> on_time -> write     (Parquet)
                             +-> late ----> publish   (Kafka, a JSON record a flight)

Peers import this module for its functions, so the import only defines them. ``make_job`` makes the job; only the client
calls it, so it may read the environment and unpack the data.
"""

import csv
import os

import flights_data
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from sardonyx import Job, files, kafka

COLUMNS = """
    year int, month int, day int, dep_time int, dep_delay int, arr_delay int, carrier string, flight int,
    tailnum string, origin string, dest string, air_time int, distance int, time_hour timestamp
"""


def clean(flights: DataFrame) -> DataFrame:
    """Drop cancelled flights: they have no departure."""
    return flights.where("dep_time is not null and dep_delay is not null").drop("dep_time")


def enrich(flights: pa.Table, *, airlines: dict) -> pa.Table:
    """Add the airline's name, the speed in miles an hour (null if the flight did not arrive) and how late it left."""
    names = pa.table({"carrier": list(airlines), "airline": list(airlines.values())})
    hours = pc.divide(pc.cast(flights["air_time"], pa.float64()), 60.0)
    delay = flights["dep_delay"]
    is_early, is_on_time, is_late = (pc.less_equal(delay, minutes) for minutes in (0, 15, 60))
    lateness = pc.case_when(pc.make_struct(is_early, is_on_time, is_late), "early", "on time", "late", "very late")
    return (
        flights.append_column("speed", pc.divide(pc.cast(flights["distance"], pa.float64()), hours))
        .append_column("lateness", lateness)
        .join(names, "carrier")
    )


def on_time(flights: DataFrame) -> DataFrame:
    """Flights that left at most 15 minutes late."""
    return flights.where("dep_delay <= 15")


def late(flight: dict, *, over: int) -> dict | None:
    """A short record of a flight that left late; drops the others."""
    if flight["dep_delay"] <= over:
        return None
    kept = ("time_hour", "carrier", "airline", "flight", "tailnum", "origin", "dest", "speed", "lateness")
    return {**{name: flight[name] for name in kept}, "minutes_late": flight["dep_delay"]}


def make_job(out: str | None = None, topic: str | None = None) -> Job:
    """The job.

    Args:
        out: the folder for the Parquet files; FLIGHTS_OUT in the environment, or ``out``.
        topic: for the late flights; FLIGHTS_TOPIC in the environment, or ``flights-late``.
    """
    out = out or os.environ.get("FLIGHTS_OUT", "out")
    topic = topic or os.environ.get("FLIGHTS_TOPIC", "flights-late")
    flights_csv, airlines_csv = flights_data.unpack()
    with airlines_csv.open(encoding="utf-8", newline="") as lines:
        airlines = {row["carrier"]: row["name"] for row in csv.DictReader(lines)}

    job = Job("flights", doc="Departures from New York in 2013, late ones apart from the others")
    flights = job.input("read", files(flights_csv, format="csv", header=True, schema=COLUMNS, nullValue="NA"))
    flown = job.task("clean", clean, after=flights)
    enriched = job.task("enrich", enrich, after=flown, params={"airlines": airlines})
    punctual = job.task("on_time", on_time, after=enriched)
    delayed = job.task("late", late, after=enriched, params={"over": 15})
    job.output("write", files(out, format="parquet", mode="overwrite"), after=punctual)
    job.output("publish", kafka(topic, format="json", key="carrier", partitions=4), after=delayed)
    return job


job = make_job
"""What ``sardonyx run`` looks for: a Job, or a function that makes one."""
