"""The version, where every layer can read it."""

from __future__ import annotations

VERSION = "0.1.0"
