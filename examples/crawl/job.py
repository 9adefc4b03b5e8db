"""Crawl a small site: a loop that ends by itself when all pages are fetched that links lead to.

    sardonyx run examples/crawl/job.py

    start -> [ fresh -> fetch -> links ] -> pages    (CSV, a row for each page)
                ^_________________|         broken   (CSV, a row for each address without a page)
                    inside links

``fresh`` remembers which addresses were seen, so each page is fetched once. The site is in ``site_pages.py``. A real crawler
would ask a web server in ``fetch``, and not too often.
"""

import os
from html.parser import HTMLParser

from site_pages import PAGES

from sardonyx import Job, State, files


class _Reader(HTMLParser):
    """Collects the title and the links of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.title = ""
        self.links: list[str] = []
        self._in_title = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._in_title = tag == "title"
        if tag == "a":
            self.links += [value for name, value in attrs if name == "href" and value]

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title += data
            self._in_title = False


def unseen(row: dict, seen: State[bool]) -> dict | None:
    """An address that comes for the first time."""
    if seen.value:
        return None
    seen.value = True
    return row


def fetch(row: dict) -> dict:
    """The page at an address, with its title and its links."""
    html = PAGES.get(row["url"])
    page = _Reader()
    page.feed(html or "")
    return {
        "url": row["url"],
        "status": 404 if html is None else 200,
        "title": page.title,
        "links": " ".join(page.links),
    }


def links(page: dict) -> list[dict]:
    """The addresses that a page leads to, a row each."""
    return [{"url": link} for link in dict.fromkeys(page["links"].split())]


def is_inside(row: dict) -> bool:
    """Whether an address is of this site."""
    return row["url"].startswith("/")


def is_there(page: dict) -> bool:
    """Whether an address had a page."""
    return page["status"] == 200


def is_broken(page: dict) -> bool:
    """Whether an address had none."""
    return page["status"] != 200


def make_job(out: str | None = None, max_hops: int = 30) -> Job:
    """The job.

    Args:
        out: the folder for the results; CRAWL_OUT in the environment, or ``out``.
        max_hops: how many links away from the start a page may be; what is further away is left out.
    """
    out = out or os.environ.get("CRAWL_OUT", "out")
    job = Job("crawl", partitions=4, doc="All pages of a small site")
    start = job.input("start", files("start.csv", format="csv", header=True, schema="url string"))
    with job.cycle("site", after=start, max_hops=max_hops) as again:
        fresh = job.keyed("fresh", unseen, after=again, group_by="url", on_error="skip")
        pages = job.task("fetch", fetch, after=fresh, max_peers=2)
        again.feedback(job.task("links", links, after=pages).where(is_inside))
    for name, condition in (("pages", is_there), ("broken", is_broken)):
        target = files(f"{out}/{name}", format="csv", header=True, mode="overwrite")
        job.output(name, target, after=pages.where(condition))
    return job


job = make_job
"""What ``sardonyx run`` looks for: a Job, or a function that makes one."""
