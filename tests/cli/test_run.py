"""What `run` measures and says, with a fake model and a clock that moves when told."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

import pytest

from tokenmill.cli.conversation import LocalModel, Message
from tokenmill.cli.run import Answer, ask, summary
from tokenmill.core.clock import ManualClock
from tokenmill.core.delta import Delta, Usage
from tokenmill.core.request import SamplingParams


class TimedModel(LocalModel):
    """Answers with these deltas, each after so many seconds."""

    def __init__(self, clock: ManualClock, *script: tuple[float, Delta]) -> None:
        self.clock, self.script = clock, script

    async def stream(
        self, messages: Sequence[Message], sampling: SamplingParams
    ) -> AsyncGenerator[Delta, None]:
        assert messages == [{"role": "user", "content": "why?"}]
        for seconds, delta in self.script:
            self.clock.advance(seconds)
            yield delta


LAST = Delta(
    text="!", token_ids=(5, 2), finish_reason="stop", usage=Usage(prompt_tokens=7, completion_tokens=5)
)


async def test_time_to_first_token_and_rate_of_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    clock = ManualClock()
    script = [(0.5, Delta(text="be", token_ids=(3,))), (1.0, Delta(text="cause")), (1.0, LAST)]
    answer = await ask(TimedModel(clock, *script), "why?", SamplingParams(), stream=True, now=clock.monotonic)
    # 4 tokens followed the first, within 2 seconds.
    assert answer == Answer("because!", "stop", 7, 5, ttft_s=0.5, tokens_per_s=2.0)
    assert capsys.readouterr().out == "because!"


async def test_one_step_has_no_rate_and_json_shows_nothing_early(capsys: pytest.CaptureFixture[str]) -> None:
    clock = ManualClock()
    answer = await ask(
        TimedModel(clock, (0.25, LAST)), "why?", SamplingParams(), stream=False, now=clock.monotonic
    )
    assert (answer.ttft_s, answer.tokens_per_s) == (0.25, 0.0)
    assert capsys.readouterr().out == ""


def test_the_summary_says_when_an_answer_was_cut() -> None:
    whole = Answer("x", "stop", 7, 5, 0.5, 2.0)
    assert summary(whole) == "  7 prompt tokens, 5 output tokens, TTFT 0.500 s, 2.0 tokens/s"
    assert summary(Answer("x", "length", 7, 5, 0.5, 2.0)).endswith("tokens/s (cut at --max-tokens)")
