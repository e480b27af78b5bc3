"""Random arrivals, lengths, aborts and tiny pools: no block is lost or used twice, every request ends once."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from support.fake_engine import Harness, expected_embedding, expected_output
from tokenmill.core.errors import ContextLengthExceeded
from tokenmill.core.events import RequestAccepted, RequestEnded
from tokenmill.core.request import Pooling


class EngineMachine(RuleBasedStateMachine):
    requests = Bundle("requests")

    @initialize(
        blocks=st.integers(2, 12),
        budget=st.integers(1, 64),
        seqs=st.integers(1, 6),
        static=st.booleans(),
        caching=st.booleans(),
    )
    def start(self, blocks: int, budget: int, seqs: int, static: bool, caching: bool) -> None:
        self.engine = Harness(
            num_blocks=blocks,
            max_num_batched_tokens=budget,
            max_num_seqs=seqs,
            batching="static" if static else "continuous",
            enable_prefix_caching=caching,
        )
        self.asked: dict[str, tuple[list[int], int, int]] = {}
        self.aborted: set[str] = set()
        self.scored: set[str] = set()
        self.embedded: dict[str, Pooling] = {}

    @rule(
        target=requests,
        token=st.integers(1, 4),
        length=st.integers(1, 120),
        output=st.integers(0, 60),
        n=st.integers(1, 3),
        salt=st.sampled_from([b"", b"x"]),
        scored=st.booleans(),
        pooling=st.sampled_from([None, None, "mean", "last"]),
    )
    def arrive(
        self,
        token: int,
        length: int,
        output: int,
        n: int,
        salt: bytes,
        scored: bool,
        pooling: Pooling | None,
    ) -> str:
        name = f"r{len(self.asked)}"
        prompt = [token] * length
        if pooling is not None:
            n, output = 1, 0
        try:
            self.engine.add(
                name,
                prompt,
                salt=salt,
                pooling=pooling,
                max_tokens=output,
                n=n,
                prompt_logprobs=0 if scored else None,
            )
        except ContextLengthExceeded:
            assert length + max(output - 1, 0) > self.engine.core.scheduler.pool.num_blocks * 16
            return ""
        if pooling is not None:
            self.embedded[name] = pooling
        elif scored:
            self.scored.add(name)
        self.asked[name] = (prompt, output, n)
        return name

    @rule(name=consumes(requests))
    def abort(self, name: str) -> None:
        self.engine.core.abort(name)
        self.aborted.add(name)

    @rule(count=st.integers(1, 20))
    def steps(self, count: int) -> None:
        for _ in range(count):
            self.engine.step()

    @invariant()
    def books_balance(self) -> None:
        if hasattr(self, "engine"):
            self.engine.core.scheduler.check()

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        engine = self.engine
        engine.run()
        engine.step()
        assert engine.core.scheduler.pool.active == 0
        ended = [event.request_id for event in engine.events if isinstance(event, RequestEnded)]
        assert sorted(ended) == sorted(self.asked)
        assert len(engine.of(RequestAccepted)) == len(self.asked)
        for name, (prompt, output, n) in self.asked.items():
            if name not in self.aborted:
                for index in range(n):
                    assert engine.tokens(name, index) == expected_output(prompt, output)
                    read = engine.deltas(name, index)[0].prompt_logprobs
                    assert len(read) == (len(prompt) if name in self.scored else 0)
                    if name in self.embedded:
                        found = np.frombuffer(engine.deltas(name)[0].embedding, "<f4")
                        expected = expected_embedding(prompt, self.embedded[name])
                        np.testing.assert_allclose(found, expected, rtol=1e-6)


EngineMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestEngineAccounting = EngineMachine.TestCase
