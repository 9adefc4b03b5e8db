"""``sardonyx topic create|list|write|peek``: small tools for topics, mostly for those of ``sardonyx dev``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from sardonyx.cli.call import Call, on_kafka
from sardonyx.cli.files import opened
from sardonyx.cli.topic_lines import records
from sardonyx.core.errors import SardonyxError
from sardonyx.core.text import counted

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="A topic's name.")]


def register(topic_app: typer.Typer) -> None:
    """Put the commands where they belong."""
    on_kafka(topic_app, "create")(create)
    on_kafka(topic_app, "list")(list_topics)
    on_kafka(topic_app, "write")(write)
    on_kafka(topic_app, "peek")(peek)


def create(
    call: Call,
    topic: Topic,
    partitions: Annotated[int, typer.Option("--partitions", min=1, metavar="N", help="Number of partitions.")] = 4,
    replication: Annotated[
        int | None,
        typer.Option(
            "--replication", min=1, metavar="N", help="Copies of each partition; default: as the broker is set."
        ),
    ] = None,
) -> None:
    """Create a topic. The Kafka of `sardonyx dev` does not create topics by itself."""
    call.settings.require("kafka")
    from queues import topics

    with call.patience("Kafka"):
        topics.create(call.settings, topic, partitions, replication or -1)
    if call.json:
        call.put_json({"topic": topic, "partitions": partitions})
    else:
        call.put(f"created topic {topic} with {counted(partitions, 'partition')}")


def list_topics(call: Call) -> None:
    """List the topics with their partitions, and how many offsets each topic holds: records and ends of transactions."""
    call.settings.require("kafka")
    from queues import topics

    with call.patience("Kafka"):
        found = topics.sizes(call.settings)
    if call.json:
        call.put_json([{"topic": topic, "partitions": len(held), "offsets": held} for topic, held in found.items()])
        return
    if not found:
        call.put("no topics; `sardonyx topic create` creates one")
        return
    from sardonyx.cli.tables import number, plain

    table = plain("topic", "partitions", "offsets")
    for topic, held in found.items():
        table.add_row(topic, number(len(held)), number(sum(held)))
    call.console.print(table)


def write(
    call: Call,
    topic: Topic,
    file: Annotated[
        str, typer.Argument(metavar="[FILE]", help="A file of lines; -, the default: standard input.")
    ] = "-",
    *,
    text: Annotated[
        bool, typer.Option("--text", help="Take lines as they are. Otherwise each holds a JSON object.")
    ] = False,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="FIELD", help="The field of each object whose value is the record's key."),
    ] = None,
) -> None:
    """Write a record for each line of a file, or of standard input, to a topic that exists.

    A file is checked before anything is written. Standard input is written as it comes: if a line is wrong, those before it stay.
    """
    if text and key is not None:
        raise SardonyxError(
            "SX-USAGE",
            "--key names a field of JSON objects, and --text takes lines as they are",
            fix="leave one of them out",
        )
    call.settings.require("kafka")
    with opened(file, "SX-LINES-FILE", "name a file with a record in each line, or - for standard input") as lines:
        if file != "-" and Path(file).is_file():  # a pipe can be read only once
            for _ in records(lines, text=text, key=key):
                pass
            lines.seek(0)
        from queues import topics

        with call.patience("Kafka"):
            topics.require(call.settings, topic)
        if lines is sys.stdin.buffer and sys.stdin.isatty():
            call.say("a record in each line; Ctrl-D ends")
        written = topics.append(call.settings, topic, records(lines, text=text, key=key))
    if call.json:
        call.put_json({"topic": topic, "records": written})
    else:
        call.put(f"wrote {counted(written, 'record')} to topic {topic}")


def peek(
    call: Call,
    topic: Topic,
    count: Annotated[int, typer.Option("-n", "--count", min=1, metavar="N", help="How many records at most.")] = 10,
) -> None:
    """Show some of the last committed records of a topic as text, in no order between partitions."""
    call.settings.require("kafka")
    from queues import topics

    with call.patience("Kafka"):
        topics.require(call.settings, topic)
        found = topics.peek(call.settings, topic, count)
    if call.json:
        call.put_json({"topic": topic, "records": found})
    elif found:
        for record in found:
            call.put(record)
    else:
        call.say(f"topic {topic} has no committed records near its end")
