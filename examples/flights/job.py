"""Every departure from New York in 2013: who was late goes to a Kafka topic, who was not into Parquet files.

    sardonyx run examples/flights/job.py

    read -> clean -> enrich -+-> on_time -> write     (Parquet)
                             +-> late ----> publish   (Kafka, a JSON record a flight)

Peers import this module for its functions, so importing it does nothing but define them; the job itself is made by
``make_job``, which only the client calls.
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
    """Leave out the cancelled ones: they have no departure."""
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
    """Those that left no more than 15 minutes late."""
    return flights.where("dep_delay <= 15")


def late(flight: dict, *, over: int) -> dict | None:
    """What is told about a flight that left late; nothing about the others."""
    if flight["dep_delay"] <= over:
        return None
    told = ("time_hour", "carrier", "airline", "flight", "tailnum", "origin", "dest", "speed", "lateness")
    return {**{name: flight[name] for name in told}, "minutes_late": flight["dep_delay"]}


def make_job(out: str | None = None, topic: str | None = None) -> Job:
    """The job. Where its results go can be given here, or by FLIGHTS_OUT and FLIGHTS_TOPIC in the environment."""
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
