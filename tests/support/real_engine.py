"""The real small model's program under engine cores of any settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from support.native_model import native_program
from tokenmill.core.bus import Bus
from tokenmill.core.clock import SystemClock
from tokenmill.core.delta import Delta
from tokenmill.core.events import Event
from tokenmill.core.flags import ModelFlags
from tokenmill.core.request import GenerateRequest, Pooling, SamplingParams
from tokenmill.engine.core import EngineCore
from tokenmill.engine.grammar.compiler import GrammarCompiler
from tokenmill.engine.limits import Limits
from tokenmill.engine.models import build_program
from tokenmill.hardware.allocator import keep_freed_memory
from tokenmill.hardware.cpu import usable_cores
from tokenmill.kernels.cpu.abi import KvFormat
from tokenmill.kernels.program import KvLayout, StepProgram
from tokenmill.kernels.reference import ReferenceProgram
from tokenmill.models.source import ModelSource, open_model
from tokenmill.models.tokenizer import Tokenizer, load_tokenizer
from tokenmill.planner.packing import Quantization

BLOCK = 32


@dataclass(frozen=True)
class RealModel:
    """Weights are loaded once; each `run` is an engine of its own over the same KV memory."""

    source: ModelSource
    tokenizer: Tokenizer
    program: StepProgram
    num_blocks: int
    grammars: GrammarCompiler

    @classmethod
    def load(cls, path: Path, dtype: torch.dtype, num_blocks: int = 256) -> RealModel:
        """On PyTorch's operators."""
        torch.set_num_threads(usable_cores())
        source = open_model(path)
        packed = build_program(source.spec, source.weights, dtype, 2048)
        shapes = tuple((layer.kv_heads, layer.head_dim) for layer in source.spec.layers)
        program = ReferenceProgram(packed, KvLayout(num_blocks, BLOCK, shapes), dtype)
        return cls._of(source, program, num_blocks)

    @classmethod
    def load_native(
        cls, path: Path, quantization: Quantization, kv_format: KvFormat, num_blocks: int = 256
    ) -> RealModel:
        """On native kernels."""
        source = open_model(path)
        program = native_program(
            source, num_blocks=num_blocks, block_size=BLOCK, quantization=quantization, kv_format=kv_format
        )
        return cls._of(source, program, num_blocks)

    @classmethod
    def _of(cls, source: ModelSource, program: StepProgram, num_blocks: int) -> RealModel:
        keep_freed_memory()
        source.weights.close()
        tokenizer = load_tokenizer(source.tokenizer_files, source.spec.vocab_size)
        grammars = GrammarCompiler(tokenizer, source.spec.eos_ids)
        return cls(source, tokenizer, program, num_blocks, grammars)

    def core(self, events: list[Event], num_blocks: int | None = None, **flags: Any) -> EngineCore:
        bus = Bus()
        bus.subscribe(events.append)
        blocks = num_blocks or self.num_blocks
        return EngineCore(
            self.program,
            Limits(self.source.spec.vocab_size, 2048, blocks * BLOCK),
            ModelFlags.model_validate({"block_size": BLOCK, **flags}),
            vocabulary=self.tokenizer,
            eos_ids=self.source.spec.eos_ids,
            bus=bus,
            clock=SystemClock(),
        )

    def run(
        self,
        prompts: list[list[int]],
        params: SamplingParams | list[SamplingParams],
        *,
        events: list[Event] | None = None,
        core: EngineCore | None = None,
        **flags: Any,
    ) -> list[list[Delta]]:
        """Deltas of each prompt, all submitted at once."""
        engine = core or self.core(events if events is not None else [], **flags)
        each = params if isinstance(params, list) else [params] * len(prompts)
        return self._answers(
            engine,
            [
                GenerateRequest(request_id=f"r{number}", prompt_ids=tuple(prompt), sampling=sampling)
                for number, (prompt, sampling) in enumerate(zip(prompts, each, strict=True))
            ],
        )

    def embed(self, prompts: list[list[int]], pooling: Pooling, **flags: Any) -> list[bytes]:
        """The embedding of each prompt, all submitted at once."""
        requests = [
            GenerateRequest(request_id=f"r{number}", prompt_ids=tuple(prompt), pooling=pooling)
            for number, prompt in enumerate(prompts)
        ]
        return [delta.embedding for (delta,) in self._answers(self.core([], **flags), requests)]

    def _answers(self, engine: EngineCore, requests: list[GenerateRequest]) -> list[list[Delta]]:
        found: dict[str, list[Delta]] = {request.request_id: [] for request in requests}
        for request in requests:
            grammar = request.sampling.grammar
            engine.add(
                request, self.grammars.matchers(grammar, request.sampling.n).result() if grammar else ()
            )
        while engine.has_work:
            for output in engine.step():
                if output.error is not None:
                    raise output.error
                if output.delta is not None:
                    found[output.request_id].append(output.delta)
        engine.scheduler.check()
        return list(found.values())


def tokens(deltas: list[Delta], index: int = 0) -> list[int]:
    return [token for delta in deltas if delta.index == index for token in delta.token_ids]


def text(deltas: list[Delta], index: int = 0) -> str:
    return "".join(delta.text for delta in deltas if delta.index == index)
