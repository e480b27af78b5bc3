import pytest

from tokenmill.bench import mock_text
from tokenmill.bench.distribution import seeded
from tokenmill.bench.mock_script import (
    MockScript,
    answer_length,
    faults_hit,
    read_script,
    with_request,
    without_faults,
)
from tokenmill.core.errors import ConfigError


def test_a_request_changes_only_what_it_names() -> None:
    script = MockScript(ttft_s=0.5, gap_s="exponential:0.1", slots=3)
    assert with_request(script, '{"ttft_s": 0.1}') == MockScript(ttft_s=0.1, gap_s="exponential:0.1", slots=3)


@pytest.mark.parametrize(
    "raw",
    [
        "",
        "[]",
        '{"speed": 1}',
        '{"ttft_s": -1}',
        '{"gap_s": "often"}',
        '{"slots": 2}',
        '{"error_status": 200}',
    ],
)
def test_an_unusable_change_is_refused(raw: str) -> None:
    with pytest.raises(ConfigError):
        with_request(MockScript(), raw)


def test_an_unknown_field_of_a_script_is_named() -> None:
    with pytest.raises(ConfigError, match="ttft_ms"):
        read_script('{"ttft_ms": 1}')


def test_faults_hit_the_first_so_many() -> None:
    script = MockScript(error_status=503, fault_first=2)
    assert [faults_hit(script, ordinal) for ordinal in range(4)] == [True, True, False, False]


def test_faults_hit_about_the_share_asked_for_and_the_same_ones_each_time() -> None:
    script = MockScript(error_status=503, fault_share=0.2)
    hit = [faults_hit(script, ordinal) for ordinal in range(2000)]
    assert hit == [faults_hit(script, ordinal) for ordinal in range(2000)]
    assert sum(hit) / 2000 == pytest.approx(0.2, abs=0.03)


def test_without_faults_keeps_the_timing() -> None:
    script = MockScript(ttft_s=0.5, error_status=500, stall_after=3, omit_done=True)
    assert without_faults(script) == MockScript(ttft_s=0.5)


@pytest.mark.parametrize(
    ("output", "max_tokens", "expected"),
    [
        (None, None, (16, True)),
        (None, 5, (5, True)),
        (3, 5, (3, False)),
        (5, 5, (5, True)),
        (9, 5, (5, True)),
    ],
)
def test_an_answer_ends_at_max_tokens_or_by_itself(
    output: int | None, max_tokens: int | None, expected: tuple[int, bool]
) -> None:
    assert answer_length(MockScript(output_tokens=output), max_tokens, seeded(0)) == expected


def test_words_are_tokens_and_ids_are_tokens() -> None:
    assert mock_text.count_tokens(" one  two\nthree ") == 3
    assert mock_text.count_tokens([5, 6]) == 2


def test_text_depends_on_seed_and_prompt_and_has_one_word_a_token() -> None:
    text = mock_text.expected_text(1, "hello there", 40)
    assert text == mock_text.expected_text(1, "hello there", 40)
    assert len(text.split()) == 40
    assert len(set(text.split())) == 40
    assert text != mock_text.expected_text(2, "hello there", 40)
    assert text != mock_text.expected_text(1, "hello again", 40)
    assert mock_text.expected_text(1, "hello there", 41).startswith(text)


def test_a_directive_is_taken_out_of_the_prompt() -> None:
    prompt = mock_text.with_directive("tell me", '{"ttft_s": 0.1}') + " more"
    assert mock_text.split_directive(prompt) == ("tell me more", '{"ttft_s": 0.1}')
    assert mock_text.split_directive("tell me more") == ("tell me more", None)
