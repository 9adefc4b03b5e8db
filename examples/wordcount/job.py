"""Gearpump's KafkaWordCount: how often each word has come in a Kafka topic of lines, from a start time on.

    sardonyx topic create lines                     # on a cluster, such as that of `sardonyx dev`
    sardonyx job submit examples/wordcount/job.py   # it runs until `sardonyx job stop wordcount`

    lines -> split -> sum -> counts   (Kafka)

A word's count so far comes after each batch that had the word. The last record of a key is the latest count, so the topic may be
compacted. With an end (WORDCOUNT_END) the same job is a batch, and the last count of each word is final.
"""

import os
import re

from sardonyx import Count, Job, everything, kafka

WORD = re.compile(r"\w+")


def split(line: dict) -> list[dict]:
    """The words of a line, in lower case."""
    return [{"word": word} for word in WORD.findall(line["line"].lower())]


def make_job(
    start: str | None = None, end: str | None = None, lines: str | None = None, counts: str | None = None
) -> Job:
    """The job.

    Args:
        start: where it begins to read: a time with its zone, ``earliest`` or ``latest``; WORDCOUNT_START in the environment, or
            ``earliest``.
        end: where it ends; WORDCOUNT_END in the environment, or nowhere.
        lines: the topic with the lines; WORDCOUNT_LINES in the environment, or ``lines``.
        counts: the topic for the counts; WORDCOUNT_COUNTS in the environment, or ``word-counts``.
    """
    start = start or os.environ.get("WORDCOUNT_START", "earliest")
    end = end or os.environ.get("WORDCOUNT_END")
    lines = lines or os.environ.get("WORDCOUNT_LINES", "lines")
    counts = counts or os.environ.get("WORDCOUNT_COUNTS", "word-counts")

    job = Job("wordcount", doc="How often each word has come")
    read = job.input("lines", kafka(lines, schema="line string", start=start, end=end))
    words = job.task("split", split, after=read)
    summed = job.window(
        "sum",
        everything(),
        after=words,
        group_by="word",
        aggregate={"count": Count()},
        emit="changes",
        state_limit=1_000_000,
    )
    job.output("counts", kafka(counts, key="word"), after=summed)
    return job


job = make_job
"""What ``sardonyx run`` looks for: a Job, or a function that makes one."""
