"""The engine without its thread: requests in, one step at a time, deltas out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass

from msgspec.structs import replace

from tokenmill.core.bus import Bus
from tokenmill.core.clock import Clock
from tokenmill.core.delta import Delta
from tokenmill.core.errors import DeadlineExceeded, GenerationFailed, TokenmillError
from tokenmill.core.events import (
    Outcome,
    Preempted,
    PrefixLookup,
    RequestAccepted,
    RequestEnded,
    StepCompleted,
)
from tokenmill.core.flags import ModelFlags
from tokenmill.core.request import GenerateRequest
from tokenmill.engine.batch import build_step
from tokenmill.engine.grammar.matcher import GrammarFailed, Matcher
from tokenmill.engine.limits import Limits
from tokenmill.engine.output import Vocabulary, logprob_entry
from tokenmill.engine.request_state import Choice, RequestState, open_request
from tokenmill.engine.sampler import CorruptLogits, Sampled
from tokenmill.engine.scheduler import Chunk, Plan, Scheduler
from tokenmill.engine.sequence import Phase, Sequence
from tokenmill.engine.step_results import StepResults, evaluate
from tokenmill.kernels.program import StepProgram

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Output:
    """Something for a request's caller: a delta, or how it ended.

    `done` is set on the last output of a request; `error` says why when it failed.
    """

    request_id: str
    delta: Delta | None = None
    error: TokenmillError | None = None
    done: bool = False


class EngineCore:
    """Owns every live request. Not thread safe: one thread calls it.

    Args:
        program: runs a step; its faults end the requests they belong to.
        vocabulary: bytes and texts of tokens.
        eos_ids: tokens that end an answer.
    """

    def __init__(
        self,
        program: StepProgram,
        limits: Limits,
        flags: ModelFlags,
        *,
        vocabulary: Vocabulary,
        eos_ids: Iterable[int],
        bus: Bus,
        clock: Clock,
        model: str = "",
        instance: str = "",
    ) -> None:
        self.scheduler = Scheduler(flags, limits.kv_tokens // flags.block_size)
        self._program = program
        self._limits = limits
        self._vocabulary = vocabulary
        self._eos_ids = frozenset(eos_ids)
        self._bus = bus
        self._clock = clock
        self._where = {"model": model, "instance": instance}
        self._requests: dict[str, RequestState] = {}
        self._with_deadline: dict[str, RequestState] = {}
        self._arrivals = 0
        # Whether the last step got anything done; an engine that has work must.
        self.progressed = True

    @property
    def has_work(self) -> bool:
        return bool(self._requests)

    def add(self, request: GenerateRequest, matchers: Items[Matcher] = ()) -> None:
        """Accepts a request.

        Args:
            matchers: its compiled grammar, one a choice; none where it has no grammar.

        Raises:
            InvalidRequest, ContextLengthExceeded: it can never be served.
        """
        max_total = self._limits.check(request)
        if request.request_id in self._requests:
            raise GenerationFailed("a request with this id is already running")
        if len(matchers) != (request.sampling.n if request.sampling.grammar is not None else 0):
            raise GenerationFailed("a request with a grammar needs one compiled matcher a choice")
        state = open_request(
            request,
            now=self._clock.monotonic(),
            first_arrival=self._arrivals,
            max_total=max_total,
            vocabulary=self._vocabulary,
            eos_ids=self._eos_ids,
            matchers=matchers,
        )
        self._arrivals += len(state.choices)
        self._requests[request.request_id] = state
        if request.deadline is not None:
            self._with_deadline[request.request_id] = state
        for choice in state.choices:
            self.scheduler.add(choice.seq)
        self._bus.publish(
            RequestAccepted(
                at=state.accepted_at,
                **self._where,
                request_id=request.request_id,
                tenant=request.tenant,
                prompt_tokens=len(request.prompt_ids),
                n=len(state.choices),
                max_tokens=max_total - len(request.prompt_ids),
                trace_id=request.trace.trace_id if request.trace else "",
            )
        )

    def abort(self, request_id: str) -> None:
        """Drops a request and its blocks at once. Unknown ids are those that have ended."""
        state = self._requests.get(request_id)
        if state is not None:
            self._end(state, "cancelled")

    def fail_all(self, error: Callable[[], TokenmillError]) -> list[Output]:
        """Ends every request with an error."""
        return [self._fail(state, error()) for state in list(self._requests.values())]

    def step(self, *, idle_s: float = 0.0, lock_s: float = 0.0, compiling: int = 0) -> list[Output]:
        """Plans, computes, samples. Returns what callers are owed, in order.

        Args:
            idle_s: slept before it, as its event tells.
            lock_s: waited for new requests, likewise.
            compiling: requests that wait for their grammar, counted as waiting.
        """
        began = self._clock.monotonic()
        outputs = self._expire(began)
        plan = self.scheduler.plan()
        self._tell_plan(plan, began)
        planned = self._clock.monotonic()
        prefill = sum(chunk.prefilled for chunk in plan.chunks)
        recomputed = sum(chunk.recomputed for chunk in plan.chunks)
        self.progressed = bool(plan.chunks) or not self.has_work
        found, failed = self._compute(plan.chunks)
        computed = self._clock.monotonic() - found.seconds
        outputs += failed
        self.scheduler.commit(plan)
        outputs += self._fail_stuck(found.stuck)
        self._read_prompts(found)
        gaps = self._deliver(found.sampled, outputs)
        outputs += self._end_prompts(plan.chunks)
        pool = self.scheduler.pool
        self._bus.publish(
            StepCompleted(
                at=self._clock.monotonic(),
                **self._where,
                running=len(self.scheduler.running),
                waiting=len(self.scheduler.waiting) + compiling,
                prefill_tokens=prefill,
                decode_tokens=plan.tokens - prefill - recomputed,
                recomputed_tokens=recomputed,
                sampled_tokens=len(found.sampled),
                kv_blocks_active=pool.active,
                kv_blocks_cached=pool.cached,
                kv_blocks_free=pool.free,
                kv_tokens=self.scheduler.kv_tokens,
                kv_slots=pool.active * self.scheduler.block_size,
                idle_s=idle_s,
                lock_s=lock_s,
                schedule_s=planned - began,
                compute_s=computed - planned,
                sample_s=found.seconds,
                token_gaps_s=gaps,
                moved_bytes=found.moved_bytes,
                multiply_adds=found.multiply_adds,
            )
        )
        return outputs

    def _expire(self, now: float) -> list[Output]:
        return [
            self._fail(state, DeadlineExceeded("the request's deadline has passed"))
            for state in list(self._with_deadline.values())
            if state.request.deadline is not None and state.request.deadline < now
        ]

    def _tell_plan(self, plan: Plan, now: float) -> None:
        for seq in plan.admitted:
            state = self._requests[seq.request.request_id]
            if state.started_at is None:
                state.started_at = now
            if seq.high_water == 0:
                self._bus.publish(
                    PrefixLookup(
                        at=now,
                        **self._where,
                        request_id=seq.request.request_id,
                        query_tokens=seq.total,
                        hit_tokens=seq.cached_tokens,
                    )
                )
        for loss in plan.preempted.values():
            self._requests[loss.seq.request.request_id].preemptions += loss.stopped
            log.debug(
                "request %s gave back %d blocks; %d tokens will be computed again",
                loss.seq.request.request_id,
                loss.freed_blocks,
                loss.lost_tokens,
            )
            self._bus.publish(
                Preempted(
                    at=now,
                    **self._where,
                    request_id=loss.seq.request.request_id,
                    freed_blocks=loss.freed_blocks,
                    lost_tokens=loss.lost_tokens,
                )
            )

    def _compute(self, chunks: Items[Chunk]) -> tuple[StepResults, list[Output]]:
        """Runs chunks and reads what came out; returns it and the failures.

        A step that breaks is run again a sequence at a time: what breaks alone is at fault and fails, and the
        others lose nothing, since computing a token's KV again writes the same values.
        """
        if not chunks:
            return StepResults(), []
        samplers = [self._choice(chunk.seq).sampler for chunk in chunks if chunk.samples]
        try:
            output = self._program.run(build_step(chunks, self.scheduler.block_size))
            began = self._clock.monotonic()
            found = evaluate(chunks, output, samplers)
            found.seconds = self._clock.monotonic() - began
            return found, []
        except Exception as fault:
            if len(chunks) == 1:
                return StepResults(), [self._broken(chunks[0].seq, fault)]
            log.warning("a step of %d sequences failed (%s); running them one by one", len(chunks), fault)
        found, failed = StepResults(), []
        for chunk in chunks:
            if chunk.seq.phase is Phase.RUNNING:
                alone, fault_alone = self._compute([chunk])
                found.add(alone)
                failed += fault_alone
        return found, failed

    def _fail_stuck(self, stuck: Items[tuple[Sequence, GrammarFailed]]) -> list[Output]:
        """Ends the requests of sequences whose grammar fails, each once."""
        first = {seq.request.request_id: fault for seq, fault in stuck if seq.phase is Phase.RUNNING}
        return [self._fail(self._requests[name], fault) for name, fault in first.items()]

    def _broken(self, seq: Sequence, fault: Exception) -> Output:
        state = self._requests[seq.request.request_id]
        self._discard(state)
        if isinstance(fault, CorruptLogits):
            log.error("request %s: the model's output is not a number", seq.request.request_id)
        else:
            log.error("request %s broke the engine step", seq.request.request_id, exc_info=fault)
        return self._fail(state, GenerationFailed("the engine could not compute this request"))

    def _discard(self, state: RequestState) -> None:
        """Wipes what a broken request computed: a number that is none would spread through padding, and a
        later prompt must not find it."""
        pool = self.scheduler.pool
        for choice in state.choices:
            own = choice.seq.blocks[len(choice.seq.blocks) - pool.private(choice.seq.blocks) :]
            pool.forget(choice.seq.blocks)
            self._program.clear(own)

    def _read_prompts(self, found: StepResults) -> None:
        for seq, scores in found.scored:
            if seq.phase is Phase.RUNNING:
                entries = self._requests[seq.request.request_id].prompt_logprobs
                entries += [logprob_entry(each, self._vocabulary) for each in scores]
        for seq, states in found.pooled:
            if seq.phase is Phase.RUNNING:
                self._requests[seq.request.request_id].pool.add(states)

    def _end_prompts(self, chunks: Items[Chunk]) -> list[Output]:
        """Ends the sequences that wanted their prompts alone."""
        outputs = []
        for seq in (chunk.seq for chunk in chunks if chunk.completes):
            if seq.phase is not Phase.RUNNING:
                continue
            state, stream = self._requests[seq.request.request_id], self._choice(seq).stream
            if seq.request.pooling is not None:
                delta = Delta(finish_reason="stop", usage=stream.usage(), embedding=state.pool.embedding())
            else:
                delta = replace(stream.prompt_alone(), prompt_logprobs=tuple(state.prompt_logprobs))
            outputs.append(self._hand_out(state, seq, delta))
        return outputs

    def _deliver(self, sampled: Items[tuple[Sequence, Sampled]], outputs: list[Output]) -> tuple[float, ...]:
        now = self._clock.monotonic()
        gaps = []
        for seq, token in sampled:
            if seq.phase is not Phase.RUNNING:
                continue  # a sibling failed in this very step, and the request with it
            state = self._requests[seq.request.request_id]
            choice = state.choices[seq.index]
            if state.first_token_at is None:
                state.first_token_at = now
            if choice.last_token_at is not None:
                gaps.append(now - choice.last_token_at)
            choice.last_token_at = now
            seq.tokens.append(token.token)
            try:
                choice.sampler.observe(token.token)
            except GrammarFailed as fault:
                outputs.append(self._fail(state, fault))
                continue
            delta = choice.stream.push(token, complete=choice.sampler.complete)
            if state.prompt_logprobs and seq.output_len == 1:
                delta = replace(delta, prompt_logprobs=tuple(state.prompt_logprobs))
            if delta.finish_reason is not None:
                self.scheduler.learn(seq.output_len)
            outputs.append(self._hand_out(state, seq, delta))
        return tuple(gaps)

    def _hand_out(self, state: RequestState, seq: Sequence, delta: Delta) -> Output:
        """The delta as the caller gets it; ends the sequence, and with the last one the request."""
        if delta.finish_reason is not None:
            self.scheduler.finish(seq)
            state.finish_reasons.append(delta.finish_reason)
            state.open -= 1
            if state.open == 0:
                self._end(state, "finished")
        return Output(state.request.request_id, delta=delta, done=state.open == 0)

    def _choice(self, seq: Sequence) -> Choice:
        return self._requests[seq.request.request_id].choices[seq.index]

    def _fail(self, state: RequestState, error: TokenmillError) -> Output:
        self._end(state, "failed", error_code=error.code)
        return Output(state.request.request_id, error=error, done=True)

    def _end(self, state: RequestState, outcome: Outcome, *, error_code: str = "") -> None:
        for choice in state.choices:
            self.scheduler.finish(choice.seq)
        del self._requests[state.request.request_id]
        self._with_deadline.pop(state.request.request_id, None)
        now = self._clock.monotonic()
        self._bus.publish(
            RequestEnded(
                at=now,
                **self._where,
                request_id=state.request.request_id,
                tenant=state.request.tenant,
                outcome=outcome,
                error_code=error_code,
                finish_reasons=tuple(state.finish_reasons),
                prompt_tokens=len(state.request.prompt_ids),
                cached_tokens=state.cached_tokens,
                completion_tokens=state.completion_tokens,
                wasted_tokens=state.wasted_tokens,
                preemptions=state.preemptions,
                queue_s=_since(state.started_at, state.accepted_at),
                ttft_s=_since(state.first_token_at, state.accepted_at),
                e2e_s=now - state.accepted_at,
                trace_id=state.request.trace.trace_id if state.request.trace else "",
            )
        )


def _since(moment: float | None, start: float) -> float | None:
    return None if moment is None else moment - start
