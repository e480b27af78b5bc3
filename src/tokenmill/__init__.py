"""tokenmill: AI infrastructure in one tool."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenmill.core import version

if TYPE_CHECKING:
    from tokenmill.core.request import SamplingParams as SamplingParams
    from tokenmill.engine.offline import Engine as Engine

__version__ = version.VERSION
__all__ = ["Engine", "SamplingParams", "__version__"]


def __getattr__(name: str) -> object:
    # Nothing heavy is imported before it is asked for.
    if name == "Engine":
        from tokenmill.engine.offline import Engine

        return Engine
    if name == "SamplingParams":
        from tokenmill.core.request import SamplingParams

        return SamplingParams
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
