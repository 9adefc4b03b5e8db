"""An Arrow function in a loop over tables in memory: one process, one thread, no queue, no Spark.

One argument: JSON with ``records`` and ``function`` (of ``performance_track``). Says ``ready`` when the rows
are made, then the rows a second of the loop.
"""

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import performance_track

from sardonyx.connectors.generator import Generator

given = json.loads(sys.argv[1])
function = getattr(performance_track, given["function"])
made = Generator({"count": given["records"]})
tables = [made.read(split.data) for split in made.splits()]
for table in tables[: len(tables) // 10]:
    function(table)  # warm, as ours is by its first tenth
print("ready", flush=True)
began = time.perf_counter()
rows = sum(function(table).num_rows for table in tables)
print(rows / (time.perf_counter() - began), flush=True)
