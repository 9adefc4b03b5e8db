"""Runs the pure engine of keyed state over a log that is cut into batches, with crashes; and shows what a store holds."""

import msgspec

from sardonyx.core.clocks import END, NEVER
from sardonyx.state.keyed import KeyedShard
from sardonyx.state.keyed_entries import EXPIRES, STATE, TIMER, keyed_schema, read_state_key
from sardonyx.state.keyed_run import KeyedFunction
from sardonyx.state.keyed_work import joined, split


class Machine:
    """One shard and its log.

    Args:
        signature: of the functions.
        function: a :class:`KeyedFunction`.
        columns: of the key.
        store: makes an empty store for a schema.
        limit: the most timers of a batch.
        parts: into how many parts work is split.
    """

    def __init__(self, signature, function, columns, store, limit=1_000, parts=1):
        self.signature, self.function, self.columns = signature, function, columns
        self.make, self.limit, self.parts = store, limit, parts
        self.log, self.results, self.failed, self.clock, self.before = [], [], [], NEVER, NEVER
        self.more = False
        self.restart()

    def restart(self):
        """A crash: the store is made again from what was committed."""
        if getattr(self, "store", None) is not None:
            self.store.close()
        self.store = self.make(keyed_schema(self.signature.declared))
        for changes in self.log:
            self.store.apply(changes)
        self.shard = KeyedShard(self.signature, self.columns, self.store)

    def plan(self, pieces, clock, before=None):
        work = self.shard.prepare(pieces, clock, before=before, limit=self.limit)
        parts = split(work, self.parts)
        done = joined(parts, [self.function.run(part) for part, _ in parts])
        return work, done, self.shard.finish(work, done)

    def batch(self, pieces, clock, before=None, crash=lambda: False):
        """A batch, and those that must follow it. ``crash``: whether it is lost after it was planned, and done again."""
        self.before = clock if clock < END else before
        while True:
            if crash():
                self.plan(pieces, clock, before)
                self.restart()
            work, done, planned = self.plan(pieces, clock, before)
            self.commit(planned)
            self.note(work, done)
            if crash():
                self.restart()
            if not planned.more:
                break
            pieces, before = [], END if clock == END else before
        self.clock = clock

    def commit(self, planned):
        keys = planned.changes["k"].to_pylist()
        assert len(set(keys)) == len(keys)
        self.log.append(planned.changes)
        self.store.apply(planned.changes)

    def note(self, work, done):
        of_tables = not isinstance(done.results, list)
        results = done.results.to_pylist() if of_tables else done.results
        self.results += zip(results, [None] * len(results) if of_tables else done.origins, strict=True)
        self.failed += [each.kind for each in done.failed]

    def shown(self, clock):
        """The states and timers that the store holds, by key and name, as :meth:`Twin.shown` gives them.

        ``clock``: at the end of the input the last clock before it counts.
        """
        clock = self.before if clock == END else clock
        found = {}
        entries = self.store.scan(STATE, EXPIRES).to_pylist()
        states = {}
        for entry in entries:
            if entry["k"][:1] == STATE:
                key, name, part = read_state_key(entry["k"])
                ttl = self.signature.states[name].ttl
                if ttl is None or entry["at"] + ttl > clock:
                    states.setdefault((key, name), {})[part] = entry["v"]
            elif entry["k"][:1] == TIMER:
                size = int.from_bytes(entry["k"][1:5], "big")
                at, _ = msgspec.msgpack.decode(entry["v"])
                found[entry["k"][5 : 5 + size], f"timer {entry['k'][5 + size :].decode()}"] = at
        for (key, name), parts in states.items():
            state = self.signature.states[name]
            if state.kind == "value":
                found[key, name] = state.codec.decode(parts[b""])
            elif state.kind == "list":
                first, last = msgspec.msgpack.decode(parts[b""])
                numbers = sorted(int.from_bytes(part, "big") for part in parts if part)
                found[key, name] = [
                    state.codec.decode(parts[number.to_bytes(8, "big")]) for number in numbers if first <= number < last
                ]
            else:
                items = [state.codec.decode(value) for part, value in sorted(parts.items()) if part]
                found[key, name] = dict(items)
        return {each: value for each, value in found.items() if value not in ([], {})}


__all__ = ["KeyedFunction", "Machine"]
