"""Flink SQL doing what our jobs do, exactly once, two tasks at a time. Runs in an environment of its own.

One argument: JSON with ``bootstrap``, ``topics`` (two), ``work`` (``filter`` or ``windows``), ``jars`` (where the connector is)
and ``folder``; of windows also ``by`` (the column of the key) and ``state`` (``hashmap``, which it is without, or ``rocksdb``).
Says ``ready`` and ``done``.
"""

import json
import sys
from pathlib import Path

from pyflink.common import Configuration
from pyflink.table import EnvironmentSettings, TableEnvironment

given = json.loads(sys.argv[1])
source, target = given["topics"]
by = given.get("by", "id")
windows = given["work"] == "windows"
SETTINGS = {
    "pipeline.jars": ";".join(path.as_uri() for path in sorted(Path(given["jars"]).glob("*.jar"))),
    "pipeline.object-reuse": "true",
    "parallelism.default": "2",
    "table.local-time-zone": "UTC",
    "execution.checkpointing.interval": "1 s",
    "execution.checkpointing.dir": Path(given["folder"], "checkpoints").as_uri(),
    "execution.checkpointing.incremental": "true",
    "state.backend.type": given.get("state", "hashmap"),
}
KAFKA = f"""'connector' = 'kafka', 'format' = 'json', 'json.timestamp-format.standard' = 'ISO-8601',
    'properties.bootstrap.servers' = '{given["bootstrap"]}'"""
# A time that windows go by has milliseconds at most.
TIME = "TIMESTAMP_LTZ(3), WATERMARK FOR `at` AS `at` - INTERVAL '1' SECOND" if windows else "TIMESTAMP_LTZ(6)"
COLUMNS = "id BIGINT, `key` STRING, `value` DOUBLE, `at`"
if windows:
    written = f"`{by}` {'BIGINT' if by == 'id' else 'STRING'}, window_start BIGINT, hits BIGINT"
    start = "1000 * CAST(TIMESTAMPDIFF(SECOND, TIMESTAMP '1970-01-01 00:00:00', window_start) AS BIGINT)"
    window = "TABLE(TUMBLE(TABLE source, DESCRIPTOR(`at`), INTERVAL '1' MINUTE))"
    query = f"SELECT `{by}`, {start}, COUNT(*) FROM {window} GROUP BY `{by}`, window_start, window_end"  # noqa: S608 - ours
else:
    written = f"{COLUMNS} {TIME}, doubled DOUBLE"
    query = "SELECT id, `key`, `value`, `at`, `value` * 2 FROM source WHERE MOD(id, 10) <> 0"

configuration = Configuration()
for name, value in SETTINGS.items():
    configuration.set_string(name, value)
modes = EnvironmentSettings.new_instance().in_streaming_mode()
tables = TableEnvironment.create(modes.with_configuration(configuration).build())
tables.execute_sql(f"""
    CREATE TABLE source ({COLUMNS} {TIME})
    WITH ({KAFKA}, 'topic' = '{source}', 'properties.group.id' = '{target}-flink', 'scan.startup.mode' = 'earliest-offset',
        'scan.bounded.mode' = 'latest-offset')
""")
tables.execute_sql(f"""
    CREATE TABLE target ({written})
    WITH ({KAFKA}, 'topic' = '{target}', 'sink.delivery-guarantee' = 'exactly-once',
        'sink.transactional-id-prefix' = '{target}-flink', 'properties.transaction.timeout.ms' = '600000',
        'properties.linger.ms' = '50', 'properties.compression.type' = 'lz4')
""")
print("ready", flush=True)
tables.execute_sql(f"INSERT INTO target {query}").wait()
print("done", flush=True)
