"""``sardonyx bundle``: the keys that sign the code of jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sardonyx.cli.call import Call, local


def register(bundle_app: typer.Typer) -> None:
    """Put the commands where they belong."""
    local(bundle_app, "keygen")(keygen)


def keygen(
    call: Call,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A new file for the private key.")],
) -> None:
    """Make a pair of keys to sign the code of jobs: the private one in FILE, the public one in FILE.pub."""
    from sardonyx.job.signatures import new_key

    public = new_key(file)
    if call.json:
        call.put_json({"private": str(file), "public": public})
        return
    call.put(public)
    call.say(
        f"the private key is in {file}: keep it secret, and name that file in client.signer where jobs are submitted"
    )
    call.say(
        "add the line above, which is in its .pub file too, to peer.signers of the daemons that are to run the code"
    )
