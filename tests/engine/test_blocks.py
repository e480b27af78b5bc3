"""The block pool: every block in exactly one place, and found again only by its own tokens."""

from __future__ import annotations

import pytest

from tokenmill.engine.blocks import BlockPool, chain_key, pack_tokens, root_key


def fill(pool: BlockPool, tokens: list[int], size: int = 4, salt: bytes = b"") -> list[int]:
    """Takes and registers the full blocks of `tokens`, as a sequence would."""
    blocks = pool.take(len(tokens) // size)
    assert blocks is not None
    parent = root_key(salt)
    for number, block in enumerate(blocks):
        parent = pool.register(block, parent, pack_tokens(tokens[number * size : (number + 1) * size]))
    return blocks


def test_taking_more_than_there_is_gives_none_and_changes_nothing() -> None:
    pool = BlockPool(3)
    assert pool.take(4) is None
    assert pool.available == 3


def test_released_blocks_with_known_content_stay_findable() -> None:
    pool = BlockPool(4)
    blocks = fill(pool, [1, 2, 3, 4, 5, 6, 7, 8])
    pool.release(blocks)
    assert [block for block, _ in pool.match([1, 2, 3, 4, 5, 6, 7, 8, 9], 4, b"")] == blocks
    assert (pool.cached, pool.free, pool.active) == (2, 2, 0)


def test_the_last_token_is_always_left_to_compute() -> None:
    pool = BlockPool(4)
    fill(pool, [1, 2, 3, 4, 5, 6, 7, 8])
    assert len(pool.match([1, 2, 3, 4, 5, 6, 7, 8], 4, b"")) == 1


def test_a_chain_matches_only_from_its_beginning() -> None:
    pool = BlockPool(4)
    fill(pool, [1, 2, 3, 4, 5, 6, 7, 8])
    assert pool.match([9, 9, 9, 9, 5, 6, 7, 8, 0], 4, b"") == []


def test_salts_keep_tenants_apart() -> None:
    pool = BlockPool(4)
    fill(pool, [1, 2, 3, 4], salt=b"one")
    assert len(pool.match([1, 2, 3, 4, 5], 4, b"one")) == 1
    assert pool.match([1, 2, 3, 4, 5], 4, b"two") == []


def test_a_key_collision_is_caught_by_comparing_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    import tokenmill.engine.blocks as blocks

    monkeypatch.setattr(blocks, "chain_key", lambda parent, packed: b"same")
    pool = BlockPool(4)
    fill(pool, [1, 2, 3, 4])
    assert pool.match([5, 6, 7, 8, 9], 4, b"") == []


def test_the_least_recently_used_block_is_taken_back_first_and_ends_before_beginnings() -> None:
    pool = BlockPool(4)
    old, new = fill(pool, [1, 2, 3, 4, 5, 6, 7, 8]), fill(pool, [11, 12, 13, 14, 15, 16, 17, 18])
    pool.release(old)
    pool.release(new)
    assert pool.take(1) == [old[1]]
    assert len(pool.match([1, 2, 3, 4, 5, 6, 7, 8, 9], 4, b"")) == 1
    assert pool.take(1) == [old[0]]
    assert pool.take(1) == [new[1]]


def test_shared_blocks_are_free_only_when_all_let_go() -> None:
    pool = BlockPool(2)
    blocks = fill(pool, [1, 2, 3, 4])
    pool.hold(blocks)
    pool.release(blocks)
    assert pool.active == 1
    pool.release(blocks)
    assert pool.active == 0


def test_releasing_twice_is_an_error_not_a_silent_double_use() -> None:
    pool = BlockPool(2)
    blocks = pool.take(1)
    assert blocks is not None
    pool.release(blocks)
    with pytest.raises(RuntimeError, match="released twice"):
        pool.release(blocks)


def test_without_caching_nothing_is_found() -> None:
    pool = BlockPool(2, caching=False)
    pool.release(fill(pool, [1, 2, 3, 4]))
    assert pool.match([1, 2, 3, 4, 5], 4, b"") == []
    assert pool.free == 2


def test_keys_are_stable_across_processes() -> None:
    # blake2b-128 of the empty salt under the personalisation, then of key + little-endian int32 tokens:
    # python3 -c "import hashlib,struct; r=hashlib.blake2b(b'',digest_size=16,person=b'tokenmill-kv').digest();
    # print(hashlib.blake2b(r+struct.pack('<4i',1,2,3,4),digest_size=16).hexdigest())"
    assert chain_key(root_key(b""), pack_tokens([1, 2, 3, 4])).hex() == KNOWN_KEY


KNOWN_KEY = "784f5978c555f1f5f897f825b984c1b6"
