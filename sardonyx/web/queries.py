"""The parameters of the API's addresses, and how they are read. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from sardonyx.core.errors import SardonyxError
from sardonyx.core.events import PeerState
from sardonyx.core.text import near
from sardonyx.web.shelf import Mark

At = Annotated[int, Meta(description="After which entry of the log; without it: now.", ge=0)] | None
Limit = Annotated[int, Meta(description="How many at most.", ge=1, le=1000)]


class NoQuery(msgspec.Struct, forbid_unknown_fields=True):
    """No parameters."""


class StopQuery(msgspec.Struct, forbid_unknown_fields=True):
    """What a stop may cost."""

    close_windows: Annotated[
        bool, Meta(description="End the job as if its inputs had an end: open windows give their results.")
    ] = False
    discard_state: Annotated[
        bool, Meta(description="Stop the job also if no other one could go on with what its tasks hold.")
    ] = False


class AtQuery(msgspec.Struct, forbid_unknown_fields=True):
    """A moment."""

    at: At = None


class JobsQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Which jobs."""

    at: At = None
    status: Annotated[str, Meta(description="Only jobs with this status.")] = ""
    name: Annotated[str, Meta(description="Only jobs of this name.")] = ""
    after: Annotated[str, Meta(description="The id after which to go on.")] = ""
    limit: Limit = 100


class PeersQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Which virtual peers."""

    at: At = None
    state: PeerState | None = None
    host: Annotated[str, Meta(description="Only peers on this machine.")] = ""
    job: Annotated[str, Meta(description="Only peers on this job, by its id.")] = ""
    after: Annotated[str, Meta(description="The id after which to go on.")] = ""
    limit: Limit = 200


class LogQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Which entries."""

    after: Annotated[int, Meta(description="Only later entries than this one.", ge=0)] | None = None
    before: Annotated[int, Meta(description="Only earlier entries than this one.", ge=0)] | None = None
    order: Annotated[Literal["desc", "asc"], Meta(description="desc: the newest first.")] = "desc"
    job: Annotated[str, Meta(description="Only what concerns this job: its id.")] = ""
    peer: Annotated[str, Meta(description="Only what concerns this peer: its id.")] = ""
    kind: Annotated[str, Meta(description="Only this kind of entry.")] = ""
    mark: Annotated[Mark, Meta(description="Only entries that stand out in this way.")] = ""
    limit: Limit = 100


class FindQuery(msgspec.Struct, forbid_unknown_fields=True):
    """A time."""

    at: Annotated[float, Meta(description="Seconds since 1970.")]


class DiffQuery(msgspec.Struct, forbid_unknown_fields=True, rename={"begin": "from", "end": "to"}):
    """Two moments."""

    begin: Annotated[int, Meta(description="After which entry to begin.", ge=0)]
    end: Annotated[int, Meta(description="After which entry to end; it may be the earlier one.", ge=0)]
    job: Annotated[str, Meta(description="Only what concerns this job: its id.")] = ""
    limit: Limit = 200


class ScaleQuery(msgspec.Struct, forbid_unknown_fields=True):
    """How fine."""

    buckets: Annotated[int, Meta(ge=1, le=1000)] = 120
    job: Annotated[str, Meta(description="Only marks that concern this job: its id.")] = ""


def read_query(kind: type[msgspec.Struct], raw: Mapping[str, str]) -> Any:
    """The query of a request. Raises ``SX-WEB-QUERY``."""
    known = list(kind.__struct_encode_fields__)
    for key in raw:
        if key not in known:
            takes = f"it takes {', '.join(known)}" if known else "it takes none"
            raise SardonyxError(
                "SX-WEB-QUERY",
                f"there is no parameter {key!r} here{near(key, known)}",
                cause=takes,
                fix="/api/v1/openapi.json lists the parameters of each address",
            )
    try:
        return msgspec.convert(dict(raw), kind, strict=False)
    except msgspec.ValidationError as error:
        raise SardonyxError(
            "SX-WEB-QUERY",
            f"a parameter cannot be read: {error}",
            fix="/api/v1/openapi.json lists the parameters of each address",
        ) from None
