"""The page about adding a model quotes the source as it is, and lists what the readers know."""

from __future__ import annotations

import re
from pathlib import Path

from tokenmill.models.hf_config import UNSUPPORTED
from tokenmill.models.hf_rope import KINDS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/adding-a-model.md").read_text()


def test_quotes_are_in_the_files_they_name() -> None:
    quotes = re.findall(r"<!-- (\S+) -->\n```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(quotes) == 5
    for name, quote in quotes:
        assert quote in (ROOT / name).read_text(), quote


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)]+)\)", PAGE):
        assert (ROOT / "docs" / target).exists(), target


def test_every_kind_of_rope_and_every_refused_cap_is_on_it() -> None:
    for word in (*KINDS, *(key for key in UNSUPPORTED if "softcapping" in key)):
        assert word in PAGE
