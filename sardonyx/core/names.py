"""Which names of jobs, tasks and deployments are valid: they become parts of paths in ZooKeeper and of Kafka topics."""

from __future__ import annotations

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


TAG_RULE = "a letter, then letters, digits, _, -, . or =, at most 60 in all"
"""The rule of :func:`is_tag` in words, for messages."""

_TAG = re.compile(r"[A-Za-z][A-Za-z0-9_.=-]{0,59}")


def is_tag(text: str) -> bool:
    """Whether this can be a tag of a peer, a task or a job."""
    return _TAG.fullmatch(text) is not None
