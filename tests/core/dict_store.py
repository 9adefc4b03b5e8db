"""The smallest store of entries: a dictionary. For tests of what plans changes; the product's stores have a suite of
their own.
"""

import pyarrow as pa

from sardonyx.state.base import GONE, KEY


class DictStore:
    """Implements ``sardonyx.state.base.Store``."""

    def __init__(self, schema):
        self.schema = schema
        self.entries = {}

    def __len__(self):
        return len(self.entries)

    def read(self, keys):
        wanted = keys.to_pylist()
        assert len(set(wanted)) == len(wanted)
        found = [position for position, key in enumerate(wanted) if key in self.entries]
        return pa.array(found, pa.int64()), self._table(wanted[position] for position in found)

    def scan(self, first=b"", before=None, limit=None):
        keys = sorted(key for key in self.entries if key >= first and (before is None or key < before))
        return self._table(keys[:limit])

    def apply(self, changes):
        assert changes.schema.names == [*self.schema.names, GONE]
        for row in changes.to_pylist():
            if row.pop(GONE):
                self.entries.pop(row[KEY], None)
            else:
                self.entries[row[KEY]] = row

    def clear(self):
        self.entries.clear()

    def close(self):
        pass

    def _table(self, keys):
        return pa.Table.from_pylist([self.entries[key] for key in keys], schema=self.schema)
