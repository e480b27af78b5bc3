"""Nouns every layer shares. Nothing here does I/O or imports torch."""
