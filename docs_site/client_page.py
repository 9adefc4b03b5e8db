"""``python -m docs_site.client_page`` writes ``docs/client.md`` and ``docs/job_handle.md`` below their first paragraphs.

What they say of each method comes from its docstring, so it is described in one place. A test compares the pages with what this
makes.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

from sardonyx.client import cluster_views, views
from sardonyx.client.client import Client
from sardonyx.client.job_handle import JobHandle

DOCS = Path(__file__).parents[1] / "docs"
BEGIN = "<!-- From here on `python -m docs_site.client_page` writes this page, from docstrings. -->"
WIDTH = 130
INNER = frozenset({"is_gone", "loaded", "put_code", "submitted", "view_of"})
"""Methods of the client that other modules of its package call."""
VIEWS = ((views, "JobView"), (views, "TaskView"), (cluster_views, "PeerView"))
_ROLE = re.compile(r":(?:class|func|meth|attr|mod|data|exc|obj):`~?(?:sardonyx\.[\w.]*\.)?([^`]+)`")
_SECTION = re.compile(r"^(Args|Returns|Raises|Yields):$")


def pages() -> dict[Path, str]:
    """Each page with its whole text: what people wrote at its top, and the rest."""
    rest = {
        "client.md": ["## Methods of the client", "", *_class(Client), *_views()],
        "job_handle.md": ["## Methods of a handle", "", *_class(JobHandle)],
    }
    return {DOCS / name: _page(DOCS / name, lines) for name, lines in rest.items()}


def _page(path: Path, lines: list[str]) -> str:
    top = path.read_text("utf-8").partition(BEGIN)[0]
    return top + "\n".join([BEGIN, "", *lines]).rstrip() + "\n"


def methods(kind: type) -> Iterator[tuple[str, object]]:
    """The public methods of a class and of those that it is made of, in the order of the source."""
    found: set[str] = set()
    for each in kind.__mro__[:-1]:
        for name, value in vars(each).items():
            if not name.startswith("_") and callable(value) and name not in found | INNER:
                found.add(name)
                yield name, getattr(kind, name)


def _class(kind: type) -> Iterator[str]:
    for name, method in methods(kind):
        yield f"### `{name}{_signature(method)}`"
        yield ""
        yield from _text(method)


def _signature(method: object) -> str:
    """Without types, which the words below it give."""
    shown = []
    for each in inspect.signature(method).parameters.values():  # type: ignore[arg-type]
        if each.name != "self":
            bare = each.replace(annotation=inspect.Parameter.empty)
            starred = each.kind is each.KEYWORD_ONLY and not any(text.startswith("*") for text in shown)
            shown += ["*", str(bare)] if starred else [str(bare)]
    return f"({', '.join(shown)})"


def _text(thing: object) -> Iterator[str]:
    """A docstring as Markdown: its sections become lists."""
    section, paragraph, items = "", [""], list[str]()
    for line in [*(inspect.getdoc(thing) or "").splitlines(), "End:"]:
        if _SECTION.match(line) or line == "End:":
            items += _items(section, paragraph)
            section, paragraph = line.rstrip(":"), []
        elif not section:
            paragraph.append(line)
        elif line.startswith("     ") and paragraph:
            paragraph[-1] += f" {line.strip()}"
        elif line.strip():
            paragraph.append(line.strip())
    yield from items
    yield ""


def _items(section: str, lines: list[str]) -> list[str]:
    if not section:
        return [_marked(line) for line in "\n".join(lines).strip().splitlines()]
    if section in ("Returns", "Yields"):
        lines = [f"{section.lower()}: {' '.join(lines)}"]
    elif section == "Args":
        lines = [re.sub(r"^([\w*]+): ", r"`\1`: ", line) for line in lines]
    else:
        lines = [f"raises {line}" for line in lines]
    return [
        "",
        *(
            wrapped
            for line in lines
            for wrapped in textwrap.wrap(
                f"- {_marked(line)}", WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
            )
        ),
    ]


def _views() -> Iterator[str]:
    """The fields of what they return, with the words below each."""
    yield from ("## What they return", "")
    for module, name in VIEWS:
        tree = ast.parse(Path(str(module.__file__)).read_text("utf-8"))
        (found,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
        yield from (f"### {name}", "", *_text(getattr(module, name)), "| field | type | |", "| --- | --- | --- |")
        for node, after in zip(found.body, [*found.body[1:], None], strict=True):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                said = after.value if isinstance(after, ast.Expr) else None
                words = str(said.value) if isinstance(said, ast.Constant) else ""
                kind = ast.unparse(node.annotation).replace("|", "\\|")
                yield f"| `{node.target.id}` | `{kind}` | {_marked(' '.join(words.split()))} |"
        yield ""


def _marked(text: str) -> str:
    """Roles of Sphinx and its double backticks as Markdown has them."""
    return _ROLE.sub(r"`\1`", text).replace("``", "`")


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, "utf-8")
