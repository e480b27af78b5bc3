"""The table of names: well formed, and fine enough where it matters."""

from __future__ import annotations

import itertools
import re

import pytest

from tokenmill.observe.names import NAMES, SECONDS, Name

NAME = re.compile(r"[a-z][a-z0-9_]*")


def test_names_and_aliases_are_unique() -> None:
    every = [row.name for row in NAMES] + [row.alias for row in NAMES if row.alias]
    assert len(every) == len(set(every))


@pytest.mark.parametrize("row", NAMES, ids=lambda row: row.name)
def test_rows_are_well_formed(row: Name) -> None:
    assert NAME.fullmatch(row.name)
    assert row.name.startswith(("tokenmill_", "gen_ai_"))
    assert not row.name.endswith("_total"), "the format adds it"
    assert row.help.endswith((".", "1."))
    assert all(NAME.fullmatch(label) for label in row.labels)
    assert not {"model", "instance", "le"} & set(row.labels)
    assert bool(row.edges) == (row.kind == "histogram")
    assert list(row.edges) == sorted(set(row.edges))
    assert not row.alias or row.alias.startswith("vllm:")
    assert set(row.alias_labels) <= set(row.labels)
    if row.kind == "histogram":
        assert not row.alias or not row.labels, "an alias sums over labels, which buckets cannot"


def test_edges_are_close_from_5_ms_to_600_s() -> None:
    near = [edge for edge in SECONDS if 0.005 <= edge <= 656]
    assert near[0] == 0.005
    assert near[-1] > 600
    assert all(high / low <= 1.25 for low, high in itertools.pairwise(near))


def test_edges_include_those_of_opentelemetry() -> None:
    otel = [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92]
    assert set(otel) <= set(SECONDS)
