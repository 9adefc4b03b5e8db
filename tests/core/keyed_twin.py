"""Keyed state as docs/state.md tells it, in dictionaries and loops: slow, plain, and without anything of the product's engine."""

import copy
from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NEVER = -(2**63)


class TwinValue:
    def __init__(self, fresh):
        self.fresh, self.held, self.written, self.was_set = fresh, None, None, False
        self.cleared = False

    @property
    def value(self):
        if self.held is None:
            self.held = self.fresh()
        return self.held

    @value.setter
    def value(self, value):
        self.held, self.was_set = value, True

    @property
    def exists(self):
        return self.written is not None or self.was_set

    def clear(self):
        self.held, self.written, self.was_set, self.cleared = None, None, False, True

    def expire(self, now, ttl):
        if self.written is not None and ttl is not None and self.written + ttl <= now:
            self.clear()

    def close(self, before, touched):
        """The call is over: what was written, was so now."""
        was = self.fresh() if self.cleared or before.held is None else before.held
        changed = self.held is not None and self.held != was
        if changed or self.was_set:
            self.written = touched if self.written is None else max(self.written, touched)
        if self.written is None:
            self.held = None
        self.was_set = self.cleared = False

    def shown(self):
        return None if self.written is None else self.held


class TwinList:
    def __init__(self):
        self.items = []

    def append(self, value):
        self.items.append([value, None])

    def extend(self, values):
        for value in values:
            self.append(value)

    def set(self, values):
        self.items = []
        self.extend(values)

    def remove_first(self, n=1):
        del self.items[:n]

    def clear(self):
        self.items = []

    def __len__(self):
        return len(self.items)

    def __iter__(self):
        return iter([value for value, _ in self.items])

    def __getitem__(self, index):
        return self.items[index][0]

    def __setitem__(self, index, value):
        written = self.items[index][1]
        self.items[index] = [value, written if isinstance(written, tuple) else (written, "again")]

    def __delitem__(self, index):
        del self.items[index]

    def expire(self, now, ttl):
        if ttl is not None:
            self.items = [item for item in self.items if item[1] + ttl > now]

    def close(self, before, touched):
        for item in self.items:
            if item[1] is None:
                item[1] = touched
            elif isinstance(item[1], tuple):
                item[1] = max(touched, item[1][0] if item[1][0] is not None else touched)

    def shown(self):
        return [value for value, _ in self.items]


class TwinMap(dict):
    """With, beside it, when each item was written."""

    def __init__(self):
        super().__init__()
        self.written, self.now_set = {}, set()

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        self.now_set.add(key)

    def __iter__(self):
        return iter(sorted(super().keys()))

    def __deepcopy__(self, memo):
        found = TwinMap()
        dict.update(found, self)
        found.written = dict(self.written)
        return found

    def expire(self, now, ttl):
        for key in [key for key in self.written if ttl is not None and self.written[key] + ttl <= now]:
            del self[key]
            del self.written[key]

    def close(self, before, touched):
        for key in self.now_set & set(dict.keys(self)):
            self.written[key] = max(touched, self.written.get(key, touched))
        self.written = {key: at for key, at in self.written.items() if key in dict.keys(self)}
        self.now_set = set()

    def shown(self):
        return {key: self[key] for key in self}


class TwinTimers:
    def __init__(self):
        self.set_for = {}
        self.now, self.due, self.ends = NEVER, None, False

    def set(self, at, name="", by="event"):
        moment = (at - EPOCH) // timedelta(microseconds=1)
        if self.due is not None and moment <= self.due:
            raise ValueError("not later")
        if not self.ends:
            self.set_for[name] = (moment, self.now)

    def delete(self, name=""):
        self.set_for.pop(name, None)


class Twin:
    """The state of all keys.

    Args:
        fn, on_timer: take ``(row or timer, states by name, timers, key)``.
        make: makes the states of a key, by name.
        ttl: by name, in microseconds.
    """

    def __init__(self, fn, on_timer, make, ttl, timer_of):
        self.fn, self.on_timer, self.make, self.ttl, self.timer_of = fn, on_timer, make, ttl, timer_of
        self.keys, self.results, self.failed = {}, {}, []
        self.clock = NEVER

    def row(self, row, key, time):
        self.fire(self.clock, only=key)
        self.call(key, self.fn, row, self.clock, max(time, self.clock))

    def state_at(self, clock):
        self.fire(clock)
        self.clock = clock

    def end(self):
        self.fire(None)

    def fire(self, clock, only=None):
        while True:
            due = [
                (at, key, name, set_at)
                for key, (_, timers) in self.keys.items()
                if only in (None, key)
                for name, (at, set_at) in timers.set_for.items()
                if clock is None or at <= clock
            ]
            if not due:
                return
            at, key, name, set_at = min(due)
            del self.keys[key][1].set_for[name]
            now = max(at, set_at)
            self.call(key, self.on_timer, self.timer_of(key, name, at), now, now, due=at, ends=clock is None)

    def call(self, key, fn, given, now, touched, due=None, ends=False):
        if key not in self.keys:
            self.keys[key] = (self.make(), TwinTimers())
        states, timers = self.keys[key]
        for name, state in states.items():
            state.expire(now, self.ttl.get(name))
        before = copy.deepcopy((states, timers))
        timers.now, timers.due, timers.ends = now, due, ends
        try:
            results = fn(given, states, timers, key)
        except Exception as error:  # noqa: BLE001 - as the product does
            self.keys[key] = before
            self.failed.append((key, type(error).__name__))
            return
        for name, state in states.items():
            state.close(before[0][name], touched)
        self.results.setdefault(key, []).extend(results)

    def shown(self):
        """What is left of each key, by the clock."""
        found = {}
        for key, (states, timers) in self.keys.items():
            for name, state in states.items():
                state.expire(self.clock, self.ttl.get(name))
                if state.shown() not in (None, [], {}):
                    found[key, name] = state.shown()
            for name, (at, _) in timers.set_for.items():
                found[key, f"timer {name}"] = at
        return found
