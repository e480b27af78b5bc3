"""Writes docs/configuration.md from the flag table. With --check it only says whether the page is current."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic.fields import FieldInfo

from tokenmill.cli.config import OTHER_VARIABLES, PREFIX
from tokenmill.cli.options import metavar, option_names
from tokenmill.core.flag_rules import allowed, plain_type
from tokenmill.core.flags import ModelFlags, ServerFlags, SloTargets

PAGE = Path(__file__).resolve().parent.parent / "docs" / "configuration.md"

INTRODUCTION = """\
# Configuration

<!-- Written by `make docs` from src/tokenmill/core/flags.py. Change it there. -->

Every setting has one name and can come from four places. The first that has it wins:

1. the command line: `--max-num-seqs 32`
2. the environment: `TOKENMILL_MAX_NUM_SEQS=32`
3. one YAML file, named by `--config FILE` or `TOKENMILL_CONFIG`
4. the default

A name nobody knows is an error that names the nearest one there is, wherever it was written. A value that
does not fit is an error that names the setting, the value, the rule and the place it came from.
`--host` other than loopback is refused without `--api-key`. A key on the command line can be read by other
users of the machine; `TOKENMILL_API_KEY` cannot.

```yaml
# mill.yaml: server settings at the top, one model, targets
port: 8000
models:
  - model: smollm2-135m-instruct
    max_num_seqs: 32
    kv_cache_memory_bytes: 1GiB
slo:
  ttft_p99_ms: 500
  availability: 0.999
```

```sh
TOKENMILL_PORT=9000 tokenmill serve --config mill.yaml --max-num-seqs 16
```
"""

SECTIONS = (
    (
        "Server settings",
        "Options of `up` and `serve`; top level of the YAML file. `chat` takes `--api-key` too.",
        ServerFlags,
    ),
    (
        "Engine settings",
        "Options of `up`, `serve`, `run` and `chat`; the entry under `models` in the YAML file; keywords of "
        "`tokenmill.Engine`.",
        ModelFlags,
    ),
)


def main() -> int:
    page = render()
    if "--check" in sys.argv[1:]:
        return 0 if PAGE.exists() and PAGE.read_text(encoding="utf-8") == page else 1
    PAGE.write_text(page, encoding="utf-8")
    return 0


def render() -> str:
    parts = [INTRODUCTION]
    for title, about, table in SECTIONS:
        rows = [_row(name, field) for name, field in table.model_fields.items()]
        parts.append(_section(title, about, ("flag", "values", "default", "what it does"), rows))
    slo = [
        (f"`{name}`", _rule(field), "", str(field.description))
        for name, field in SloTargets.model_fields.items()
    ]
    parts.append(
        _section("Targets", "Keys under `slo` in the YAML file.", ("key", "values", "", "what it is"), slo)
    )
    variables = [(f"`{name}`", text) for name, text in OTHER_VARIABLES.items()]
    about = f"Beside these, every flag is a variable: `--port` is `{PREFIX}PORT`."
    parts.append(_section("Other environment variables", about, ("variable", "what it does"), variables))
    return "\n".join(parts)


def _row(name: str, field: FieldInfo) -> tuple[str, str, str, str]:
    names = "<br>".join(f"`{part}`" for text in option_names(name, field) for part in text.split("/"))
    default = field.default
    if isinstance(default, bool):
        default = "on" if default else "off"
    return names, _rule(field), "" if default is None else f"`{default}`", str(field.description)


def _rule(field: FieldInfo) -> str:
    if plain_type(field) is bool:
        return "on or off"
    if metavar(field) == "SIZE":
        return "bytes, or like `2GiB`, `500MiB`, `4G`"
    return allowed(field).removeprefix("must be ")


def _section(title: str, about: str, headings: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [f"## {title}", "", about, "", _line(headings), _line(("---",) * len(headings))]
    return "\n".join([*lines, *map(_line, rows), ""])


def _line(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
