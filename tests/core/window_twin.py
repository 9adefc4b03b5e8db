"""Windows once more, by loops over all rows that ever came: written from the docstrings of ``sardonyx.state``, not
from its code.
"""

import datetime as dt
import math
import statistics
from functools import cache
from zoneinfo import ZoneInfo

END = 2**63 - 1
QUARTER = 15 * 60 * 1_000_000


class Twin:
    """What a shard must give. It keeps every row, and what it has given for which window.

    A row is a dictionary; ``at`` is its time, ``key`` its key. A block is a list of rows and the clock in force
    before it.
    """

    def __init__(self, window):
        self.window = window
        self.grace = window.grace
        self.kept = window.allowed_lateness
        self.given = {}  # window and key: results so far
        self.told = {}  # window and key: how many of its rows the last result counted
        self.on_time = {}  # window and key: rows
        self.closed = set()
        self.blocks = 0
        self.order = 0
        self.mark = None
        self.numbers = {}  # of counted windows, by key: the last row's
        self.open = []  # sessions

    def plan(self, blocks, clock):
        """The results and the late rows of some blocks, and the clock after them."""
        results, late = self.planned(blocks, clock)
        if self.window.aggregate:
            return results, late
        bounds = ("window_start", "window_end", *(["window_number"] if self.window.kind == "counted" else []))
        columns = ("key", "at", "n", "x", "d", "s")
        return [{c: row[c] for c in columns} | {b: w[b] for b in bounds} for w in results for row in w["rows"]], late

    def planned(self, blocks, clock):
        if self.window.kind == "session":
            return self.sessions(blocks, clock)
        if self.window.kind == "counted":
            return self.counted(blocks, clock)
        results, late, corrections, touched = [], [], [], []
        for rows, in_force in blocks:
            for number, columns in enumerate(rows):
                self.order += 1
                row = columns | {"order": self.order}
                windows = self.windows(row["at"])
                open_ = [w for w in windows if w[1] + self.grace > in_force or w[1] == END > in_force]
                held = [
                    w for w in windows if w not in open_ and w[1] != END and w[1] + self.grace + self.kept > in_force
                ]
                for w in open_:
                    self.on_time.setdefault((w, row["key"]), []).append(row)
                    touched.append((w, row["key"]))
                corrections += [(self.blocks, w, row) for w in held]
                if windows and not open_ and not held:
                    start, end = max(windows)
                    late.append(
                        (self.blocks, number, start, end, None if in_force == END else in_force - end - self.grace)
                    )
            self.blocks += 1
        closing = [w for w in self.on_time if w not in self.closed and self.over(w[0], clock)]
        results += self.early(touched, closing, clock)
        for w in closing:
            self.closed.add(w)
            results.append(self.result(w, final=True))
        for block in sorted({block for block, _, _ in corrections}):
            hit = {}
            for at, w, row in corrections:
                if at == block:
                    hit.setdefault((w, row["key"]), []).append(row)
            for w, rows in hit.items():
                self.closed.add(w)
                self.on_time.setdefault(w, []).extend(rows)
                results.append(self.result(w, final=False))
        return results, late

    def over(self, window, clock):
        return clock == END if window[1] == END else window[1] + self.grace <= clock

    def early(self, touched, closing, clock):
        emit, _, rest = self.window.emit.partition(" ")
        due = []
        if emit == "changes":
            due = touched
        elif emit == "count":
            due = [w for w in touched if self.fresh(w) >= int(rest)]
        elif emit == "every":
            now = max(clock, -(2**62)) // int(rest)
            if self.mark is not None and now > self.mark:
                due = [w for w in self.on_time if w not in self.closed and self.fresh(w)]
            self.mark = now if self.mark is None else max(now, self.mark)
        return [self.result(w, final=False) for w in dict.fromkeys(due) if w not in closing]

    def fresh(self, w):
        return len(self.on_time[w]) - self.told.get(w, 0)

    def result(self, w, *, final):
        (start, end), key = w
        rows = self.on_time[w]
        if not self.window.accumulate:
            rows = rows[self.told.get(w, 0) :]
        self.told[w] = len(self.on_time[w])
        pane = self.given[w] = self.given.get(w, -1) + 1
        return self.row(start, end, key, rows, pane, final)

    def row(self, start, end, key, rows, pane, final):
        out = {
            "key": key,
            "window_start": start,
            "window_end": end,
            "pane": pane,
            "final": final,
            "window_time": end - 1,
        }
        if self.window.kind in {"everything", "counted"}:
            out |= {
                "window_start": None,
                "window_end": None,
                "window_time": max((row["at"] for row in rows), default=None),
                "window_number": start // (self.window.every or self.window.size or 1),
            }
            if self.window.aggregate or self.window.kind == "everything":
                del out["window_number"]
        if not self.window.aggregate:
            return out | {"rows": rows}
        return out | {name: aggregated(spec, rows) for name, spec in self.window.aggregate.items()}

    # --- Sessions and counted windows ---

    def counted(self, blocks, clock):
        size, every = self.window.size, self.window.every or self.window.size
        touched = []
        for rows, _ in blocks:
            for row in rows:
                self.order += 1
                number = self.numbers[row["key"]] = self.numbers.get(row["key"], -1) + 1
                for start in range(number // every * every, -1, -every):
                    if start + size > number:
                        w = ((start, start + size), row["key"])
                        self.on_time.setdefault(w, []).append(row | {"order": self.order})
                        touched.append(w)
        closing = [
            w for w, rows in self.on_time.items() if w not in self.closed and (len(rows) == size or clock == END)
        ]
        results = self.early(touched, closing, clock)
        self.closed.update(closing)
        return results + [self.result(w, final=True) for w in closing], []

    def sessions(self, blocks, clock):
        late, touched = [], []
        for rows, in_force in blocks:
            for key in dict.fromkeys(row["key"] for row in rows):
                mine = []
                for number, columns in enumerate(rows):
                    if columns["key"] == key:
                        self.order += 1
                        row = columns | {"order": self.order, "number": number}
                        mine.append(
                            {
                                "key": key,
                                "first": row["at"],
                                "last": row["at"],
                                "rows": [row],
                                "pane": 0,
                                "told": 0,
                                "old": False,
                            }
                        )
                for session in self.chain(key, mine, in_force):
                    end = session["last"] + self.window.gap
                    joined, session["old"] = session["old"], True
                    if not joined and end + self.grace <= in_force:
                        by = None if in_force == END else in_force - end - self.grace
                        late += [(self.blocks, row["number"], session["first"], end, by) for row in session["rows"]]
                    else:
                        self.open.append(session)
                        touched.append(session)
            self.blocks += 1
        closing = [s for s in self.open if clock == END or s["last"] + self.window.gap + self.grace <= clock]
        emit, _, rest = self.window.emit.partition(" ")
        due = []
        if emit in {"changes", "count"}:
            due = [
                s for s in self.open if any(s is t for t in touched) and len(s["rows"]) - s["told"] >= int(rest or 1)
            ]
        elif emit == "every":
            now = max(clock, -(2**62)) // int(rest)
            if self.mark is not None and now > self.mark:
                due = [s for s in self.open if len(s["rows"]) > s["told"]]
            self.mark = now if self.mark is None else max(now, self.mark)
        results = [self.of_session(s, False) for s in due if not any(s is c for c in closing)]
        results += [self.of_session(s, True) for s in closing]
        self.open = [s for s in self.open if not any(s is c for c in closing)]
        return results, late

    def chain(self, key, mine, in_force):
        """The sessions that rows of a piece are in afterwards. Those that they join are no longer open ones."""
        gap = self.window.gap
        most = None if self.window.most is None else max(self.window.most, gap)
        may = [s for s in self.open if s["key"] == key and s["last"] + gap + self.grace > in_force]
        found = []
        for item in sorted(may + mine, key=lambda item: (item["first"], not item["old"])):
            before = found[-1] if found else None
            if before and item["first"] < before["last"] + gap:
                last = max(before["last"], item["last"])
                if most is None or last + gap - before["first"] <= most:
                    before["last"] = last
                    before["parts"].append(item)
                    continue
            found.append({"key": key, "first": item["first"], "last": item["last"], "parts": [item]})
        out = []
        for session in found:
            parts = session.pop("parts")
            if all(part["old"] for part in parts):
                continue
            self.open = [s for s in self.open if not any(s is part for part in parts)]
            old = [part for part in parts if part["old"]]
            # those that a result has counted come first, so that `told` says which
            told = [row for part in old for row in part["rows"][: part["told"]]]
            fresh = [row for part in old for row in part["rows"][part["told"] :]]
            fresh += [row for part in parts if not part["old"] for row in part["rows"]]
            session |= {
                "rows": told + fresh,
                "told": len(told),
                "pane": sum(part["pane"] for part in old),
                "old": bool(old),
            }
            out.append(session)
        return out

    def of_session(self, session, final):
        rows = session["rows"] if self.window.accumulate else session["rows"][session["told"] :]
        session["told"] = len(session["rows"])
        session["pane"] += 1
        return self.row(
            session["first"], session["last"] + self.window.gap, session["key"], rows, session["pane"] - 1, final
        )

    # --- Which windows a time is in ---

    def windows(self, time):
        spec = self.window
        if spec.kind == "everything":
            return [(0, END)]
        if spec.kind == "calendar":
            return [unit_around(time // QUARTER, spec.unit, spec.zone)]
        every = spec.every or spec.size
        found = []
        start = time // every * every
        while start > time - spec.size:
            found.append((start, start + spec.size))
            start -= every
        return found


@cache
def unit_around(quarter, unit, zone):
    first = last = quarter
    here = label(quarter, unit, zone)
    while label(first - 1, unit, zone) == here:
        first -= 1
    while label(last, unit, zone) == here:
        last += 1
    return first * QUARTER, last * QUARTER


@cache
def label(quarter, unit, zone):
    """Instants that are a quarter of an hour from each other and have the same label are in one window."""
    at = (dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=quarter * QUARTER)).astimezone(
        ZoneInfo(zone)
    )
    return {
        "hour": (at.date(), at.hour, at.utcoffset()),
        "day": at.date(),
        "week": at.isocalendar()[:2],
        "month": (at.year, at.month),
        "year": at.year,
    }[unit]


def aggregated(spec, rows):  # noqa: PLR0911 - one for each aggregate
    """One aggregate of some rows."""
    rows = sorted(rows, key=lambda row: (row["at"], row["order"]))
    all_values = [row[spec.column] for row in rows] if spec.column else rows
    values = [value for value in all_values if value is not None]
    numbers = [value for value in values if not (isinstance(value, float) and math.isnan(value))] if spec.column else []
    match spec.of:
        case "count":
            return len(values)
        case "sum":
            return sum(values) if values else None
        case "min" | "max":
            return (min if spec.of == "min" else max)(numbers or values, default=None)
        case "mean":
            return sum(map(float, values)) / len(values) if values else None
        case "var":
            return statistics.variance(map(float, values)) if len(values) > 1 else None
        case "first":
            return all_values[0] if all_values else None
        case "last":
            return all_values[-1] if all_values else None
        case "distinct":
            return min(len(set(values)), spec.options.get("most", len(values)))
        case "collect":
            return values[: spec.options.get("most")]
        case "quantile":
            ranked = sorted(numbers)
            return ranked[math.floor(spec.options["q"] * (len(ranked) - 1))] if ranked else None
