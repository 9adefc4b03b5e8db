"""Run the pipeline in all three modes, on services of its own, and show what it gives: ``python examples/pipeline/main.py``."""

from functools import partial

from job import build

from sardonyx.pipeline import Environment

ORDERS = [
    {"shop": shop, "at": f"2026-11-27T10:0{n // 3}:{n % 3 * 10:02}Z", "currency": currency, "amount": float(n * 10)}
    for n, (shop, currency) in enumerate([("oslo", "EUR"), ("lima", "USD"), ("oslo", "USD")] * 4)
]


def main() -> None:
    """A batch and micro-batches end by themselves; the stream goes on until it is stopped."""
    with Environment.local(peers=2) as here:
        here.topic("orders", ORDERS)
        for mode in ("batch", "micro"):
            print(mode)
            for row in here.pipeline(f"shops-{mode}", partial(build, mode=mode), partitions=2).collect("revenue-out"):
                print("  ", row["shop"], row["orders"], row["euros"], row["window_end"])
        handle = here.pipeline("shops-stream", partial(build, mode="stream"), partitions=2).execute()
        handle.stop()
        print("stream", handle.await_completion("2 min").status)


if __name__ == "__main__":
    main()
