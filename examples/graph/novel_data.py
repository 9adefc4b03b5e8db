"""Write who appears with whom in Les Misérables, from the package ``networkx``, into a CSV file beside this module, once."""

import csv
import os
import tempfile
from pathlib import Path

DATA = Path(__file__).parent / "data"


def unpack() -> Path:
    """The path of meetings.csv: 254 pairs of 77 characters, and in how many chapters both appear (Knuth, 1993)."""
    meetings = DATA / "meetings.csv"
    if not meetings.exists():
        import networkx as nx  # only who submits the job needs it

        DATA.mkdir(exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=DATA)
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            lines = csv.writer(file)
            lines.writerow(["one", "other", "chapters"])
            lines.writerows(sorted(nx.les_miserables_graph().edges(data="weight")))
        Path(temporary).chmod(0o644)
        Path(temporary).replace(meetings)  # so that another process never sees half a file
    return meetings
