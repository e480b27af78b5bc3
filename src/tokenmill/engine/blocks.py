"""KV blocks: who holds them, which are free, and which can be found again by their tokens."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence as Items
from dataclasses import dataclass

import numpy as np

KEY_BYTES = 16


def root_key(salt: bytes) -> bytes:
    """Start of a key chain. Requests under different salts never share a block."""
    return hashlib.blake2b(salt, digest_size=KEY_BYTES, person=b"tokenmill-kv").digest()


def pack_tokens(tokens: Items[int]) -> bytes:
    """Tokens of a block as bytes, the same on every machine."""
    return np.asarray(tokens, dtype="<i4").tobytes()


def chain_key(parent: bytes, packed: bytes) -> bytes:
    """Key of a full block: its tokens and all before them."""
    return hashlib.blake2b(parent + packed, digest_size=KEY_BYTES).digest()


@dataclass(frozen=True)
class _Entry:
    block: int
    parent: bytes
    packed: bytes


class BlockPool:
    """`num_blocks` blocks, each in exactly one state.

    - held: one or more sequences use it (`_holders` > 0);
    - cached: nobody holds it, but its KV can be found by key; taken back in order of last use;
    - free: nobody holds it and nothing is known of its content.
    """

    def __init__(self, num_blocks: int, *, caching: bool = True) -> None:
        self.num_blocks = num_blocks
        self._caching = caching
        self._free = list(range(num_blocks - 1, -1, -1))
        self._holders = [0] * num_blocks
        self._entries: dict[bytes, _Entry] = {}
        self._key_of: dict[int, bytes] = {}
        self._cached: OrderedDict[int, None] = OrderedDict()

    @property
    def available(self) -> int:
        """Blocks that can be had now."""
        return len(self._free) + len(self._cached)

    @property
    def cached(self) -> int:
        return len(self._cached)

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def active(self) -> int:
        return self.num_blocks - self.available

    def take(self, count: int) -> list[int] | None:
        """`count` blocks, or None when there are not as many. All or nothing."""
        if count > self.available:
            return None
        taken = []
        for _ in range(count):
            if self._free:
                block = self._free.pop()
            else:
                block, _ = self._cached.popitem(last=False)
                del self._entries[self._key_of.pop(block)]
            self._holders[block] = 1
            taken.append(block)
        return taken

    def release(self, blocks: Items[int]) -> None:
        """Gives blocks up, deepest first, so that a chain loses its end before its beginning."""
        for block in reversed(blocks):
            if self._holders[block] < 1:
                raise RuntimeError(f"block {block} is released twice")
            self._holders[block] -= 1
            if self._holders[block] == 0:
                if block in self._key_of:
                    self._cached[block] = None
                else:
                    self._free.append(block)

    def register(self, block: int, parent: bytes, packed: bytes) -> bytes:
        """Makes a full, computed block findable; returns its key. The first of equal blocks stays."""
        key = chain_key(parent, packed)
        if self._caching and key not in self._entries and block not in self._key_of:
            self._entries[key] = _Entry(block, parent, packed)
            self._key_of[block] = key
        return key

    def match(
        self, tokens: Items[int], block_size: int, salt: bytes, known: Items[bytes] = ()
    ) -> list[tuple[int, bytes]]:
        """The longest known chain of full blocks of `tokens`: (block, key) of each, none held yet.

        `known` are the keys of leading blocks the caller has already; the chain goes on behind them. The
        last token is left out, since its logits have to be computed.
        """
        found: list[tuple[int, bytes]] = []
        parent = known[-1] if known else root_key(salt)
        if not self._caching:
            return found
        end = (len(tokens) - 1) // block_size * block_size
        for start in range(len(known) * block_size, end, block_size):
            packed = pack_tokens(tokens[start : start + block_size])
            key = chain_key(parent, packed)
            entry = self._entries.get(key)
            if entry is None or entry.packed != packed or entry.parent != parent:
                break
            found.append((entry.block, key))
            parent = key
        return found

    def private(self, blocks: Items[int]) -> int:
        """How many blocks at the end of `blocks` have one holder, so that releasing them frees them."""
        count = 0
        for block in reversed(blocks):
            if self._holders[block] != 1:
                break
            count += 1
        return count

    def forget(self, blocks: Items[int]) -> None:
        """Makes held blocks unfindable: what they hold must not be used again."""
        for block in blocks:
            key = self._key_of.pop(block, None)
            if key is not None:
                del self._entries[key]

    def idle(self, block: int) -> bool:
        """Whether a block is cached and held by nobody, so that holding it makes one fewer available."""
        return self._holders[block] == 0

    def hold(self, blocks: Items[int]) -> None:
        """Takes part in blocks found by `match`."""
        for block in blocks:
            if self._holders[block] == 0:
                del self._cached[block]
            self._holders[block] += 1

    def check(self, held: Items[Items[int]]) -> None:
        """Raises RuntimeError unless the books agree with what sequences say they hold."""
        counted = [0] * self.num_blocks
        for blocks in held:
            for block in blocks:
                counted[block] += 1
        if counted != self._holders:
            raise RuntimeError("blocks held and blocks accounted for differ")
        idle = sorted([*self._free, *self._cached])
        if idle != [block for block, holders in enumerate(counted) if holders == 0]:
            raise RuntimeError("a block is lost or in two places")
        if {entry.block for entry in self._entries.values()} != set(self._key_of):
            raise RuntimeError("the prefix index names blocks it does not own")
