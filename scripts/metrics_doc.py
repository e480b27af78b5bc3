"""Writes docs/metrics.md from the table of names. With --check it only says whether the page is current."""

from __future__ import annotations

import sys
from pathlib import Path

from tokenmill.observe.names import NAMES, Name

PAGE = Path(__file__).resolve().parent.parent / "docs" / "metrics.md"

INTRODUCTION = """\
# Metrics

<!-- Written by `make docs` from src/tokenmill/observe/names.py. Change it there. -->

`GET /metrics` is a Prometheus page. Every series carries `model` and `instance` besides its own labels; a
counter is shown with `_total` behind its name. Series with a vLLM name are served under it as well.

## How much of the machine is used

Native kernels count the bytes they move and the multiply-adds they do. `tokenmill peaks` measures what the
machine can do at most (once; `--fresh` measures again, when nothing else runs), and the engine tells both
as it starts. Decoding a few sequences reads every weight for each token, so its bound is memory; prompts
reuse weights, so theirs is arithmetic.

Over five minutes, the share of the memory bandwidth that decoding used while it computed:

```promql
rate(tokenmill_engine_moved_bytes_total{phase="decode"}[5m])
  / rate(tokenmill_engine_kernel_seconds_total{phase="decode"}[5m])
  / on(model, instance) group_left tokenmill_peak_read_bytes_per_second
```

The share of the int8 peak that prompts used:

```promql
rate(tokenmill_engine_multiply_adds_total{phase="prefill"}[5m])
  / rate(tokenmill_engine_kernel_seconds_total{phase="prefill"}[5m])
  / on(model, instance) group_left tokenmill_peak_int8_multiply_adds_per_second
```

`tokenmill_engine_memory_share_ratio` and `tokenmill_engine_int8_share_ratio` say the same of the last step.
A model that fits into the caches may pass 1. PyTorch's operators count nothing: of all these, only the
kernels' seconds are there then.

## All names

| name | kind | labels | what it is | vLLM's name |
| --- | --- | --- | --- | --- |
"""


def main() -> int:
    page = INTRODUCTION + "".join(map(_row, NAMES))
    if "--check" in sys.argv[1:]:
        return 0 if PAGE.exists() and PAGE.read_text(encoding="utf-8") == page else 1
    PAGE.write_text(page, encoding="utf-8")
    return 0


def _row(name: Name) -> str:
    labels = ", ".join(f"`{label}`" for label in name.labels)
    alias = f"`{name.alias}`" if name.alias else ""
    return f"| `{name.name}` | {name.kind} | {labels} | {name.help} | {alias} |\n"


if __name__ == "__main__":
    sys.exit(main())
