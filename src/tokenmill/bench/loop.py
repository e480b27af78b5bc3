"""Running the bench processes on the fastest event loop there is."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_loop(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` on uvloop where it is installed.

    What the imports made is moved out of the garbage collector's sight: full collections would otherwise
    show up as latency of the server under test.
    """
    gc.collect()
    gc.freeze()
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)
