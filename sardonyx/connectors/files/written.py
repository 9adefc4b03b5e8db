"""The rows of files that an output has written, for people who look at them. Types of text are guessed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyarrow import csv, dataset


def rows_in(where: str | list[str], options: Mapping[str, Any]) -> dataset.Dataset:
    """Everything in a folder, or in files, that an output with these options has written."""
    form: Any = str(options["format"])
    if form == "csv":
        # As it is written: nulls have no quotes, so a null alone in its row is a blank line.
        form = dataset.CsvFileFormat(
            read_options=csv.ReadOptions(autogenerate_column_names=not options.get("header", True)),
            parse_options=csv.ParseOptions(ignore_empty_lines=False, newlines_in_values=True),
            convert_options=csv.ConvertOptions(strings_can_be_null=True, quoted_strings_can_be_null=False),
        )
    return dataset.dataset(where, format=form)
