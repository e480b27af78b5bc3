"""What one rendering of a chat template may use up, and the operations that could use up much at once.

A template comes with a model file, so it may be hostile. Every value a template makes is charged to the
rendering's `Budget`: after the operation when the result is no larger than its operands, before it when
it can be larger. A single operation is therefore short, and processor time is checked between them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from string import Formatter
from typing import Literal

from jinja2 import TemplateRuntimeError, Undefined
from jinja2.filters import do_int, do_round

MAX_OUTPUT_CHARS = 16 << 20
MAX_MADE_CHARS = 128 << 20
MAX_CPU_SECONDS = 2.0
MAX_INT_BITS = 1024
MAX_PRECISION = 30
MAX_NESTING = 64
MAX_INDENT = 64


class TemplateLimit(TemplateRuntimeError):
    """The template did more than it may."""


@dataclass
class Budget:
    """Counts down for one rendering.

    Attributes:
        output: characters that may still be written.
        made: characters (and 8 for each list entry) that may still be made on the way.
        deadline: processor time of this thread at which the rendering ends.
    """

    output: int = MAX_OUTPUT_CHARS
    made: int = MAX_MADE_CHARS
    deadline: float = 0.0
    cpu: Callable[[], float] = time.thread_time

    def __post_init__(self) -> None:
        self.deadline = self.cpu() + MAX_CPU_SECONDS

    def step(self) -> None:
        if self.cpu() > self.deadline:
            raise TemplateLimit(f"it ran for more than {MAX_CPU_SECONDS:g} seconds")

    def grow(self, size: int) -> None:
        self.made -= size
        if self.made < 0:
            raise TemplateLimit("it builds too much text on the way")
        self.step()

    def write(self, size: int) -> None:
        self.output -= size
        if self.output < 0:
            raise TemplateLimit(f"it writes more than {MAX_OUTPUT_CHARS} characters")
        self.grow(size)


BUDGET: ContextVar[Budget] = ContextVar("chat_template_budget")


def measure(value: object, depth: int = 0) -> tuple[int, int]:
    """Charges everything inside `value`; returns its nodes (shared parts counted each time) and depth.

    Raises:
        TemplateLimit: it holds something that is not plain data, or is nested too deep.
    """
    if depth > MAX_NESTING:
        raise TemplateLimit(f"it nests values more than {MAX_NESTING} deep")
    inner: Iterable[object]
    if isinstance(value, str):
        BUDGET.get().grow(len(value))
        return 1, depth
    if value is None or isinstance(value, (int, float, Undefined)):
        return 1, depth
    if isinstance(value, dict):
        inner = (part for item in value.items() for part in item)
    elif isinstance(value, (list, tuple)):
        inner = value
    else:
        raise TemplateLimit("it uses something as text that is not plain data")
    nodes, deepest = 1, depth
    for item in inner:
        BUDGET.get().grow(8)
        count, below = measure(item, depth + 1)
        nodes, deepest = nodes + count, max(deepest, below)
    return nodes, deepest


def text(value: object) -> str:
    """`str(value)` of plain data."""
    if isinstance(value, str):
        return value
    measure(value)
    return str(value)


def made(value: object) -> object:
    """Charges a value an operation has made. Lazy values are charged as they are read."""
    budget = BUDGET.get()
    if isinstance(value, str):
        budget.grow(len(value))
    elif isinstance(value, (list, tuple, dict)):
        budget.grow(8 * len(value))
    elif isinstance(value, Iterator):
        return each(value)
    else:
        budget.step()
    return value


def built(value: object) -> object:
    """Charges a list, tuple or dict literal with all it holds, so that nesting cannot multiply unseen."""
    for item in (
        value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    ):
        if isinstance(item, (list, tuple, dict)):
            measure(item)
    return made(value)


def each(values: Iterable[object]) -> Iterator[object]:
    """The values, checking the time before each."""
    step = BUDGET.get().step
    for value in values:
        step()
        yield value


def concat(parts: Iterable[object]) -> str:
    """The `~` operator."""
    return join(parts, "")


def join(parts: Iterable[object], separator: object = "") -> str:
    """`separator.join(parts)` of plain data."""
    texts = [text(part) for part in each(parts)]
    between = text(separator)
    BUDGET.get().grow(sum(map(len, texts)) + len(between) * len(texts))
    return between.join(texts)


def replace(value: object, old: object, new: object, count: object = -1) -> str:
    """`value.replace(old, new, count)`."""
    source, before, after = text(value), text(old), text(new)
    limit = count if isinstance(count, int) else -1
    found = source.count(before)
    BUDGET.get().grow(len(source) + len(after) * (min(found, limit) if limit >= 0 else found))
    return source.replace(before, after, limit)


def indent(value: object, width: object = 4, first: bool = False, blank: bool = False) -> str:
    """Jinja's `indent`: every line but the first moved right by `width` spaces, or by that string."""
    margin = " " * max(0, min(width, MAX_INDENT + 1)) if isinstance(width, int) else text(width)
    if len(margin) > MAX_INDENT:
        raise TemplateLimit(f"it indents by more than {MAX_INDENT} characters")
    source = text(value)
    BUDGET.get().grow(len(source) + len(margin) * (source.count("\n") + 1))
    lines = source.split("\n")
    moved = [margin + line if line or blank else line for line in lines[1:]]
    return "\n".join([margin + lines[0] if first else lines[0], *moved])


def to_int(value: object, default: object = 0, base: int = 10) -> object:
    """Jinja's `int`."""
    if isinstance(value, str) and len(value) > MAX_INT_BITS:
        raise TemplateLimit(f"it computes a number of more than {MAX_INT_BITS} bits")
    return do_int(value, default, base)  # type: ignore[arg-type]


def rounded(
    value: object, precision: object = 0, method: Literal["common", "ceil", "floor"] = "common"
) -> object:
    """Jinja's `round`, which computes 10**precision and multiplies the value by it."""
    if not isinstance(value, (int, float)):
        raise TemplateLimit("it rounds something that is not a number")
    if not (isinstance(precision, int) and abs(precision) <= MAX_PRECISION):
        raise TemplateLimit(f"it rounds to something other than {MAX_PRECISION} places at most")
    binary("*", value, 10 ** abs(precision))
    return do_round(value, precision, method)


def to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without HTML escapes, as chat templates expect it."""
    if indent is not None and not (isinstance(indent, int) and 0 <= indent <= MAX_INDENT):
        raise TemplateLimit(f"it indents JSON by something other than 0 to {MAX_INDENT} spaces")
    marks = sum(map(len, separators)) if separators else 0
    nodes, depth = measure(value)
    BUDGET.get().grow(nodes * (4 + marks + (indent or 0) * depth))
    return json.dumps(
        value,
        ensure_ascii=bool(ensure_ascii),
        indent=indent,
        separators=separators,
        sort_keys=bool(sort_keys),
    )


def format_text(pattern: str, render: Callable[..., str]) -> Callable[..., str]:
    """`pattern.format` for plain values and short widths."""

    def bounded(*args: object, **kwargs: object) -> str:
        values = [*args, *kwargs.values()]
        if not all(value is None or isinstance(value, (str, int, float)) for value in values):
            raise TemplateLimit("it formats something that is not text or a number")
        fields = 0
        for _, name, spec, _ in Formatter().parse(pattern):
            fields += name is not None
            if spec and ("{" in spec or any(len(run) > 3 for run in _digit_runs(spec))):
                raise TemplateLimit("it formats with a width above 999 or one computed on the way")
        longest = max((len(value) for value in values if isinstance(value, str)), default=0)
        BUDGET.get().grow(len(pattern) + fields * (1000 + longest))
        return render(*args, **kwargs)

    return bounded


def _digit_runs(spec: str) -> list[str]:
    return "".join(char if char.isdigit() else " " for char in spec).split()


def binary(operator: str, left: object, right: object) -> None:
    """Refuses or charges an operator that could take long or make something large, before it runs."""
    budget = BUDGET.get()
    if operator == "%" and isinstance(left, str):
        raise TemplateLimit("it formats with %, which is not supported")
    if isinstance(left, int) and isinstance(right, int):
        bits = max(left.bit_length(), right.bit_length())
        if operator == "*":
            bits = left.bit_length() + right.bit_length()
        elif operator == "**":
            bits = max(bits, left.bit_length() * max(right, 0))
        if bits > MAX_INT_BITS:
            raise TemplateLimit(f"it computes a number of more than {MAX_INT_BITS} bits")
        budget.step()
    elif operator == "*":
        for value, times in ((left, right), (right, left)):
            if isinstance(value, (str, list, tuple)) and isinstance(times, int):
                budget.grow(len(value) * max(times, 0) * (1 if isinstance(value, str) else 8))
    elif operator == "+" and isinstance(left, (str, list, tuple)) and isinstance(right, (str, list, tuple)):
        budget.grow((len(left) + len(right)) * (1 if isinstance(left, str) else 8))
        if not isinstance(left, str):
            budget.step()
