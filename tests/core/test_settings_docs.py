"""docs/settings.md against the settings: each one stands there, with its default."""

from __future__ import annotations

import re
from pathlib import Path

from sardonyx.runtime.settings import Settings, is_known

PAGE = (Path(__file__).parents[2] / "docs" / "settings.md").read_text("utf-8")


def told() -> dict[str, str]:
    """The settings of the page, each with its default. ``a.b``, ``.c`` in one cell are ``a.b`` and ``a.c``."""
    found: dict[str, str] = {}
    for line in PAGE.splitlines():
        if line.startswith("| `"):
            names, default = re.split(r"(?<!\\)\|", line)[1:3]
            section = ""
            for name in re.findall(r"`([a-z_.*]+)`", names):
                section = section if name.startswith(".") else name.rpartition(".")[0]
                found[f"{section}{name}" if name.startswith(".") else name] = default.strip().strip("`")
    return found


def test_the_page_has_every_setting_with_its_default() -> None:
    """As ``sardonyx config`` shows it; those of logins have none worth telling."""
    shown = {key: value for key, value, _ in Settings.model_construct().shown()}
    known = told()
    assert not [key for key in shown if key not in known]
    assert {key: known[key] for key in shown if known[key]} == {
        key: shown[key] or "none" for key in shown if known[key]
    }


def test_the_page_has_no_setting_that_does_not_exist() -> None:
    """Except for names that stand for all below them."""
    assert not [key for key in told() if "*" not in key and not is_known(key)]
