"""A step's rows taken apart: sampled tokens, log-probabilities of prompts, states for embeddings."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass, field

import torch

from tokenmill.engine.grammar.matcher import GrammarFailed
from tokenmill.engine.prompt_logprobs import score
from tokenmill.engine.sampler import CorruptLogits, Sampled, sample
from tokenmill.engine.sampler_state import SamplerState
from tokenmill.engine.scheduler import Chunk
from tokenmill.engine.sequence import Sequence
from tokenmill.kernels.program import StepOutput


@dataclass
class StepResults:
    """What a step gave, by sequence.

    Attributes:
        stuck: sequences whose grammar allows no token.
        pooled: states, [positions, hidden].
        seconds: what evaluating took.
        moved_bytes, multiply_adds: what the kernels counted.
    """

    sampled: list[tuple[Sequence, Sampled]] = field(default_factory=list)
    stuck: list[tuple[Sequence, GrammarFailed]] = field(default_factory=list)
    scored: list[tuple[Sequence, list[Sampled]]] = field(default_factory=list)
    pooled: list[tuple[Sequence, torch.Tensor]] = field(default_factory=list)
    seconds: float = 0.0
    moved_bytes: int = 0
    multiply_adds: int = 0

    def add(self, other: StepResults) -> None:
        self.sampled += other.sampled
        self.stuck += other.stuck
        self.scored += other.scored
        self.pooled += other.pooled
        self.seconds += other.seconds
        self.moved_bytes += other.moved_bytes
        self.multiply_adds += other.multiply_adds


def evaluate(chunks: Items[Chunk], output: StepOutput, samplers: Items[SamplerState]) -> StepResults:
    """Reads the rows in the order `build_step` asked for them.

    Args:
        samplers: of the chunks that sample.

    Raises:
        CorruptLogits: a row holds NaN or infinity.
    """
    found = StepResults(moved_bytes=output.moved_bytes, multiply_adds=output.multiply_adds)
    logits, states = output.logits[len(samplers) :], output.hidden
    for seq, reads in ((chunk.seq, chunk.reads) for chunk in chunks if chunk.reads):
        if seq.scores_prompt:
            mine, logits = logits[: len(reads)], logits[len(reads) :]
            following = seq.tokens[reads.start + 1 : reads.stop + 1]
            found.scored.append((seq, score(mine, following, seq.request.sampling.prompt_logprobs or 0)))
        else:
            mine, states = states[: len(reads)], states[len(reads) :]
            found.pooled.append((seq, mine))
        if not bool(mine.sum().isfinite()):
            raise CorruptLogits(reads.start)
    if samplers:
        tokens = sample(output.logits[: len(samplers)], samplers)
        sampling = (chunk.seq for chunk in chunks if chunk.samples)
        for seq, token in zip(sampling, tokens, strict=True):
            if isinstance(token, GrammarFailed):
                found.stuck.append((seq, token))
            else:
                found.sampled.append((seq, token))
    return found
