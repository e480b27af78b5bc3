"""Tokenizers: equal ids with the transformers library, exact bytes, a clear refusal of what cannot work."""

from __future__ import annotations

import random
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from support.small_tokenizers import (
    byte_level,
    byte_level_metadata,
    gemma_metadata,
    sentencepiece,
    sentencepiece_metadata,
)
from support.texts import PIECES, RUNS, SPELLED, texts
from tokenmill.core.errors import InvalidRequest, ModelFileError
from tokenmill.models.source import open_model
from tokenmill.models.tokenizer import Tokenizer, load_tokenizer
from tokenmill.models.tokenizer_files import TokenizerFiles
from tokenmill.models.tokenizer_parts import no_panic


@pytest.fixture(scope="module")
def small(small_model_path: Path) -> Tokenizer:
    source = open_model(small_model_path)
    source.weights.close()
    return load_tokenizer(source.tokenizer_files, source.spec.vocab_size)


@pytest.fixture(scope="module")
def reference(small_model_path: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(small_model_path.parent, gguf_file=small_model_path.name)


class TestSmallModel:
    def test_ids_equal_transformers(self, small: Tokenizer, reference: Any) -> None:
        # transformers does not know the word "smollm" in tokenizer.ggml.pre and leaves digits unsplit; with
        # the splitter of the model's own tokenizer.json (digits, then byte level) it must agree everywhere.
        backend = reference.backend_tokenizer
        unsplit = backend.pre_tokenizer
        pieces = tuple(piece for piece in PIECES + SPELLED if not any(map(str.isnumeric, piece)))
        for text in texts(2, 1000, pieces):
            assert small.encode(text, add_special=False) == reference.encode(text), text
        try:
            backend.pre_tokenizer = pre_tokenizers.Sequence(
                [pre_tokenizers.Digits(individual_digits=True), unsplit]
            )
            for text in [*texts(3, 1000, PIECES + SPELLED), *RUNS]:
                assert small.encode(text, add_special=False) == reference.encode(text), text
        finally:
            backend.pre_tokenizer = unsplit

    def test_text_survives_the_round_trip(self, small: Tokenizer) -> None:
        for text in texts(4, 300):
            assert small.decode(small.encode(text, add_special=False)) == text

    def test_decode_equals_transformers_also_for_broken_characters(
        self, small: Tokenizer, reference: Any
    ) -> None:
        rng = random.Random(5)
        for _ in range(300):
            ids = [rng.randrange(small.vocab_size) for _ in range(rng.randint(0, 12))]
            for skip in (True, False):
                expected = reference.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
                assert small.decode(ids, skip_special=skip) == expected, ids

    def test_special_tokens_in_the_text_are_parsed_and_have_no_bytes(self, small: Tokenizer) -> None:
        ids = small.encode("a<|im_end|>", add_special=True)
        assert ids[-1] == 2
        assert small.token_bytes(2) == b""
        assert small.token_text(2) == "<|im_end|>"
        assert small.decode(ids) == "a"
        assert small.decode(ids, skip_special=False) == "a<|im_end|>"

    def test_begin_and_ends(self, small: Tokenizer) -> None:
        assert (small.bos_id, small.bos_token, small.eos_token) == (1, "<|im_start|>", "<|im_end|>")
        assert small.eos_ids == (2, 0)  # its EOS and <|endoftext|>
        assert not small.add_bos
        assert small.encode("a", add_special=True) == small.encode("a", add_special=False)

    def test_half_a_character_is_shown_as_incomplete(self, small: Tokenizer) -> None:
        ids = small.encode("😀", add_special=False)
        assert len(ids) > 1
        assert b"".join(map(small.token_bytes, ids)) == "😀".encode()
        assert all("\ufffd" in small.token_text(token) for token in ids)

    def test_ids_outside_the_vocabulary_are_nothing(self, small: Tokenizer) -> None:
        assert small.token_bytes(10**9) == small.token_bytes(-1) == b""
        assert small.decode([10**9, -1]) == ""

    def test_a_lone_surrogate_is_refused(self, small: Tokenizer) -> None:
        with pytest.raises(InvalidRequest, match="surrogate"):
            small.encode("a\ud800", add_special=False)

    def test_encoding_a_large_text_lets_other_threads_run(self, small: Tokenizer) -> None:
        text = "some words and 12 numbers\n" * 40_000
        started, finished = threading.Event(), threading.Event()

        def work() -> None:
            started.set()
            small.encode(text, add_special=False)
            finished.set()

        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-4)
        thread = threading.Thread(target=work)
        try:
            thread.start()
            started.wait()
            turns = 0
            while not finished.wait(0.001):
                turns += 1
        finally:
            thread.join()
            sys.setswitchinterval(interval)
        # With the GIL held throughout, the main thread gets a turn or two at the edges.
        assert turns > 10


def _of(metadata: dict[str, Any]) -> Tokenizer:
    return load_tokenizer(TokenizerFiles(gguf=metadata), len(metadata["tokenizer.ggml.tokens"]))


TOKENIZERS = [
    _of(byte_level_metadata(byte_level())),
    _of(sentencepiece_metadata(sentencepiece())),
    _of(gemma_metadata()),
]


@settings(max_examples=200, deadline=None)
@given(
    # Not SentencePiece's space mark, nor the first letter of special tokens.
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁<"))
)
def test_bytes_of_tokens_are_the_bytes_of_the_text(text: str) -> None:
    for tokenizer in TOKENIZERS:
        ids = tokenizer.encode(text, add_special=False)
        joined = b"".join(map(tokenizer.token_bytes, ids))
        if tokenizer.first_token_strips_space:
            assert joined == (b" " + text.encode() if text else b"")
        else:
            assert joined == text.encode()
        assert tokenizer.decode(ids) == text


def test_the_longest_token_counts_special_tokens_by_name(small: Tokenizer) -> None:
    ordinary = max(len(small.token_bytes(number)) for number in range(small.vocab_size))
    special = max(len(small.token_text(number).encode()) for number in (small.bos_id or 0, *small.eos_ids))
    assert small.longest_token_bytes >= max(ordinary, special)
    assert small.longest_token_bytes < 1000


@pytest.mark.parametrize("text", ["aé中👍", "e\u0301", "\u1112\u1161\u11ab", "\u03b9\u0308\u0301", "\u212b"])
@pytest.mark.parametrize("pre", ["gpt-2", "qwen2"])
def test_no_token_stands_for_more_text_than_the_longest(text: str, pre: str) -> None:
    """Bringing a text to its normal form shortens it before it is cut into tokens."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [*letters, "aa"],
        "tokenizer.ggml.merges": ["a a"],
    }
    tokenizer = _of(metadata)
    ids = tokenizer.encode(text * 500, add_special=False)
    assert len(ids) * tokenizer.longest_token_bytes >= len(text.encode()) * 500
    assert tokenizer.longest_token_bytes == (6 if pre == "qwen2" else 2)


def test_a_panic_of_the_library_is_an_ordinary_error() -> None:
    panic = type("PanicException", (BaseException,), {})
    with pytest.raises(ModelFileError, match="it breaks"), no_panic("it breaks", ModelFileError):
        raise panic
    with pytest.raises(KeyboardInterrupt), no_panic("it breaks", ModelFileError):
        raise KeyboardInterrupt


def test_a_special_token_beyond_the_weights_is_refused() -> None:
    metadata = sentencepiece_metadata(sentencepiece()) | {"tokenizer.ggml.eos_token_id": 200}
    with pytest.raises(ModelFileError, match="special token 200, the weights only ids up to 99"):
        load_tokenizer(TokenizerFiles(gguf=metadata), 100)
