"""What pyproject.toml cannot say: the description for a package index, which is README.md without links into the repository."""

import re
from pathlib import Path

from setuptools import setup


def without_relative_links(text: str) -> str:
    """Keep the words of links and pictures that lead to files of the repository; those are not there on a package index."""
    picture = re.compile(r"!\[([^\]]*)\]\((?!https?:)[^)]*\)")
    link = re.compile(r"\[([^\]]*)\]\((?!https?:|#)([^)]*)\)")
    text = picture.sub(r"\1", text)
    return link.sub(lambda found: f"{found[1]} (`{found[2].partition('#')[0]}` in the source distribution)", text)


readme = Path(__file__).with_name("README.md").read_text("utf-8")
setup(long_description=without_relative_links(readme), long_description_content_type="text/markdown")
