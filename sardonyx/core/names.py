"""Which names of jobs, tasks and deployments are valid: they become parts of paths in ZooKeeper and of Kafka topics."""

from __future__ import annotations

import hashlib
import re

NAME_RULE = "a letter, then letters, digits, _ or -, at most 60 in all"
"""The rule of :func:`is_name` in words, for messages."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,59}")
_JOB_ID = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,79}")


def is_name(text: str) -> bool:
    """Whether this can be the name of a job, a task or a deployment."""
    return _NAME.fullmatch(text) is not None


def is_job_id(text: str) -> bool:
    """Whether this can be the id of a job: its name and what the client appends to tell it from others of that name."""
    return _JOB_ID.fullmatch(text) is not None


def job_name(job: str) -> str:
    """The name of a job, which its id begins with: ``flights`` of ``flights-k3x9qa``."""
    return job.rpartition("-")[0] or job


AUTHOR = 8
"""Characters of a request's uuid that tell its author."""


def request_id(author: str, token: str) -> str:
    """The uuid of a request. Its first characters are the same for all requests of one author, so that they can be counted
    without being read.
    """
    return (hashlib.sha256(author.encode()).hexdigest()[:AUTHOR] if author else "") + token


def numbered(name: str) -> tuple[int, str]:
    """The number that ZooKeeper gave the request, and the uuid before it. A name without a number comes first, and is found
    unreadable.
    """
    front, dash, number = name.rpartition("-")
    if not (dash and number.isdecimal()):
        return -1, ""
    if front.endswith("-"):  # ZooKeeper counts with 32 bits and a sign: after the largest number comes the smallest
        front, number = front[:-1], f"-{number}"
    return int(number) & 0xFFFF_FFFF, front.rpartition("-")[2]


TAG_RULE = "a letter, then letters, digits, _, -, . or =, at most 60 in all"
"""The rule of :func:`is_tag` in words, for messages."""

_TAG = re.compile(r"[A-Za-z][A-Za-z0-9_.=-]{0,59}")


_PUBLIC_KEY = re.compile(r"ed25519:[A-Za-z0-9+/]{43}=")


def is_public_key(text: str) -> bool:
    """Whether this is the public key of a signer of code, as :mod:`sardonyx.job.signatures` writes it."""
    return _PUBLIC_KEY.fullmatch(text) is not None


def is_tag(text: str) -> bool:
    """Whether this can be a tag of a peer, a task or a job."""
    return _TAG.fullmatch(text) is not None
