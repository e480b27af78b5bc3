"""The event bus: synchronous and lossless for its direct subscribers."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from tokenmill.core.events import Event

log = logging.getLogger(__name__)

Subscriber = Callable[[Event], None]


class Bus:
    """Hands each event to every subscriber, on the publisher's thread, in the order published.

    A subscriber that raises loses that event and is counted; it never harms the publisher.
    Subscribers may be called from several threads at once and do their own locking.
    """

    def __init__(self) -> None:
        self._subscribers: tuple[Subscriber, ...] = ()
        self._lock = threading.Lock()
        self.errors = 0

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Adds a subscriber; returns what removes it."""
        with self._lock:
            self._subscribers = (*self._subscribers, subscriber)

        def unsubscribe() -> None:
            with self._lock:
                self._subscribers = tuple(s for s in self._subscribers if s is not subscriber)

        return unsubscribe

    def publish(self, event: Event) -> None:
        for subscriber in self._subscribers:
            try:
                subscriber(event)
            except Exception:
                with self._lock:
                    self.errors += 1
                    first = self.errors == 1
                if first:
                    log.exception("an event subscriber failed; further failures are only counted")
