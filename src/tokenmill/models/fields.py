"""Typed reading of a model's configuration: each value is checked, each refusal names its key."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, ItemsView, Mapping

from tokenmill.core.bounds import show
from tokenmill.core.errors import ModelFileError

MAX_LAYERS = 4096
MAX_HEADS = 4096
MAX_EXPERTS = 1024
# Over all layers; each is three matrices.
MAX_EXPERTS_IN_ALL = 1 << 17
MAX_WIDTH = 1 << 20
MAX_VOCAB = 1 << 24
MAX_POSITION = 1 << 30
MAX_IDS = 1024
# Added to a mean square before its root; within float32.
EPSILONS = (1e-12, 1.0)
# What attention scores are multiplied by, or the root of what they are divided by.
SCORE_FACTORS = (1 / MAX_WIDTH, float(MAX_WIDTH))


class Fields:
    """A mapping someone else wrote. A null value counts as absent; an absent one takes the default.

    Raises:
        ModelFileError: on reading a value that is missing without a default, or not what was asked for.
    """

    def __init__(self, label: str, values: Mapping[str, object]) -> None:
        self.label = label
        self._values = values

    def __contains__(self, key: str) -> bool:
        return self._values.get(key) is not None

    def get(self, key: str) -> object:
        return self._values.get(key)

    def filled(self, absent: Mapping[str, object], *, nullable: Collection[str]) -> Fields:
        """Absent keys have these values. Under a `nullable` key null is a value of its own and stays."""
        given = {k: v for k, v in self._values.items() if v is not None or k in nullable}
        return Fields(self.label, {**absent, **given})

    def items(self) -> ItemsView[str, object]:
        return self._values.items()

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        value = self._get(key, default)
        if type(value) is not int or not low <= value <= high:
            raise self.error(key, f"an integer from {low} to {high}")
        return value

    def integers(
        self, key: str, count: int, low: int, high: int, default: list[int] | None = None
    ) -> list[int]:
        """A list of `count` integers; a single one stands for all of them."""
        value = self._get(key, default)
        values = value if isinstance(value, list) else [value] * count
        numbers = [n for n in values if type(n) is int and low <= n <= high]
        if not len(numbers) == len(values) == count:
            raise self.error(key, f"an integer from {low} to {high}, or {count} of them")
        return numbers

    def list_of_integers(self, key: str, longest: int) -> list[int]:
        """Any integers, at most `longest` of them; an absent list is empty."""
        value = self._get(key, [])
        if not isinstance(value, list) or len(value) > longest or not all(type(n) is int for n in value):
            raise self.error(key, f"a list of at most {longest} integers")
        return value

    def number(self, key: str, low: float, high: float, default: float | None = None) -> float:
        number = _number(self._get(key, default))
        if not low <= number <= high:
            raise self.error(key, f"a number from {low:g} to {high:g}")
        return number

    def positive(self, key: str, default: float | None = None) -> float:
        number = _number(self._get(key, default))
        if not 0 < number < math.inf:
            raise self.error(key, "a number above 0")
        return number

    def numbers(self, key: str, count: int, low: float, high: float) -> tuple[float, ...]:
        """A list of `count` numbers."""
        value = self._get(key, None)
        numbers = tuple(map(_number, value)) if isinstance(value, list) else ()
        if len(numbers) != count or not all(low <= number <= high for number in numbers):
            raise self.error(key, f"a list of {count} numbers from {low:g} to {high:g}")
        return numbers

    def text(self, key: str, default: str | None = None) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self.error(key, "a string")
        return value

    def strings(self, key: str) -> list[str]:
        value = self._get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error(key, "a list of strings")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.error(key, "true or false")
        return value

    def nested(self, key: str) -> Fields:
        """The mapping under a key; an absent one is empty."""
        value = self._get(key, {})
        if not isinstance(value, Mapping):
            raise self.error(key, "a mapping")
        return Fields(f"{self.label}: {key}", value)

    def token_ids(self, key: str, vocab_size: int) -> tuple[int, ...]:
        """An id, a list of ids or nothing. Negative ids are how some files write "none"."""
        value = self._get(key, [])
        values = value if isinstance(value, list) else [value]
        ids = [i for i in values if type(i) is int and i < vocab_size]
        if len(ids) != len(values) or len(ids) > MAX_IDS:
            raise self.error(key, f"token ids below {vocab_size}, at most {MAX_IDS}")
        return tuple(i for i in ids if i >= 0)

    def error(self, key: str, allowed: str) -> ModelFileError:
        value = self._values.get(key)
        if value is None:
            return ModelFileError(f"{self.label}: {key} is missing; it must be {allowed}")
        return ModelFileError(f"{self.label}: {key} is {show(value)}; it must be {allowed}")

    def _get(self, key: str, default: object) -> object:
        value = self._values.get(key)
        return default if value is None else value


def _number(value: object) -> float:
    """NaN for what is no number."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        # JSON may hold an integer that no float can.
        with contextlib.suppress(OverflowError):
            return float(value)
    return math.nan
