"""What MkDocs does besides for our site: diagrams, pages from outside of docs/, and links that lead into the repository.

The same files are read on a code host, so they are plain Markdown: diagrams are Mermaid blocks, links to code are relative
paths. Here diagrams become SVG files when the site is built, and a link to a file that is not on the site becomes its path in
words. Whatever is wrong, such as a link to a file that does not exist or a diagram that Mermaid cannot read, is a warning, and
``make docs`` takes warnings for errors.
"""

from __future__ import annotations

import hashlib
import logging
import posixpath
import re
from pathlib import Path, PurePosixPath

import mermaidx
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
log = logging.getLogger("mkdocs.plugins.sardonyx")

FROM_ROOT = {
    "index.md": "README.md",
    "zk_layout.md": "zk_layout.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
}
"""Pages of the site that are files beside docs/: page -> file."""

REFERENCE = {
    "reference/sardonyx.md": ("sardonyx", "What jobs and programs import."),
    "reference/pipeline.md": ("sardonyx.pipeline", "Jobs as pipelines of streams, and where they run."),
    "reference/testing.md": ("sardonyx.testing", "Tests of jobs: on rows, on real services, and under faults."),
    "reference/connectors.md": ("sardonyx.connectors.base", "What a connector of your own implements."),
    "reference/plan.md": (
        "sardonyx.core.plan",
        "How a job runs: what `Job.plan()` gives, and `check --plan json` prints.",
    ),
}
"""Pages made from docstrings: page -> module, what it is for."""

IN_GROUPS = {
    "sardonyx": {
        "Jobs": ["Job", "GraphView", "Cycle", "OnError", "Secret", "JobPlan"],
        "Conditions": ["all_of", "any_of", "not_"],
        "Programs over graphs": ["VertexProgram", "Vertex", "Superstep"],
        "Where the time of a row comes from": ["event_time", "kafka_time", "wall", "ordinal"],
        "Windows": ["tumbling", "hopping", "session", "counted", "calendar", "everything"],
        "What windows hold": [
            "Count",
            "Sum",
            "Min",
            "Max",
            "Mean",
            "Var",
            "First",
            "Last",
            "Distinct",
            "Quantile",
            "Collect",
        ],
        "When results of windows come": ["every", "on_count"],
        "State of keys": ["State", "ListState", "MapState", "Timers", "Timer", "Key"],
        "Connectors": ["kafka", "files", "sql", "generator", "console", "blackhole", "connector"],
        "For connectors of your own": ["Split", "PositionedOutput", "StoredPosition", "PositionsMoved"],
        "Clients and settings": ["Client", "Settings", "load_settings"],
        "Errors": [
            "SardonyxError",
            "SpecUnreadable",
            "JobInvalid",
            "JobFailed",
            "FunctionError",
            "InputError",
            "OutputError",
            "SetupError",
            "Interrupted",
        ],
    },
}
"""The order of names on a page: module -> title -> names. A module without groups is shown in the order of its source."""

_MERMAID = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_CODE = re.compile(r"(^```.*?^```$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside of docs/, the reference, and a file for each diagram."""
    for page, source in FROM_ROOT.items():
        if (ROOT / source).exists() and files.get_file_from_path(page) is None:
            files.append(File.generated(config, page, content=(ROOT / source).read_text("utf-8")))
    for page, (module, purpose) in REFERENCE.items():
        content = f"# {module}\n\n{purpose}\n\n{_reference(module)}"
        files.append(File.generated(config, page, content=content))
    for file in list(files.documentation_pages()):
        for source in _MERMAID.findall(file.content_string):
            name = _diagram(source)
            if files.get_file_from_path(name) is None:
                files.append(File.generated(config, name, content=_drawn(source, file.src_uri)))
    return files


def on_page_markdown(markdown: str, page: Page, files: Files, **_: object) -> str:
    """Put the diagrams in, and lead links of the repository to pages of the site."""
    here = posixpath.dirname(page.file.src_uri)

    def diagram(found: re.Match[str]) -> str:
        return f"![Diagram: {found[1].split(maxsplit=1)[0]}]({posixpath.relpath(_diagram(found[1]), here or '.')})"

    markdown = _MERMAID.sub(diagram, markdown)
    source = PurePosixPath(FROM_ROOT.get(page.file.src_uri, f"docs/{page.file.src_uri}"))
    parts = _CODE.split(markdown)  # code at odd places
    return "".join(
        part if index % 2 else _LINK.sub(lambda found: _link(found, source, here, files), part)
        for index, part in enumerate(parts)
    )


def _reference(module: str) -> str:
    """Instructions for mkdocstrings."""
    if module not in IN_GROUPS:
        return f"::: {module}\n    options:\n      show_root_heading: false\n"
    lines = []
    for title, names in IN_GROUPS[module].items():
        lines += [f"## {title}", ""]
        for name in names:
            lines += [f"::: {module}.{name}", "    options:", "      heading_level: 3", ""]
    return "\n".join(lines)


def _link(found: re.Match[str], source: PurePosixPath, here: str, files: Files) -> str:
    """A link as the site has it. ``source`` is the page's file in the repository, ``here`` its folder on the site."""
    mark, text, target = found.groups()
    path, _, anchor = target.partition("#")
    if not path or "://" in target or target.startswith("mailto:"):
        return found[0]
    if path.startswith("diagrams/") or "/diagrams/" in path:
        return found[0]
    wanted = posixpath.normpath(posixpath.join(source.parent.as_posix(), path))  # in the repository
    on_site = {file: name for name, file in FROM_ROOT.items()}.get(wanted, wanted.removeprefix("docs/"))
    if files.get_file_from_path(on_site) is not None:
        return f"{mark}[{text}]({posixpath.relpath(on_site, here or '.')}{'#' + anchor if anchor else ''})"
    if wanted.startswith("..") or not (ROOT / wanted).exists():
        log.warning("%s links to '%s', and there is no such file in the repository", source, target)
    return text if wanted in text else f"{text} (`{wanted}`)"


def _diagram(source: str) -> str:
    return f"diagrams/{hashlib.sha256(source.encode()).hexdigest()[:16]}.svg"


def _drawn(source: str, page: str) -> str:
    try:
        return mermaidx.render(source).svg()
    except RuntimeError as error:
        log.warning("%s holds a diagram that Mermaid cannot read: %s", page, error)
        return "<svg xmlns='http://www.w3.org/2000/svg'/>"
