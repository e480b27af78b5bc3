"""How far the served model is from its unquantized self: both read the same prose, in one process.

    python benchmarks/quality.py --quantization auto --tokens 8192

Prints the mean Kullback-Leibler divergence of the next token, how often both hold the same token for the
likeliest, the same where the reference is sure (its best is more than 1 nat ahead), and both perplexities.
The reference computes in float32 from the same file. The prose is Python's own manual.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import torch

from tokenmill.core.flags import ModelFlags
from tokenmill.core.home import default_home
from tokenmill.engine.load import LoadedModel, load_model
from tokenmill.kernels.step import Step
from tokenmill.models.catalogue import DEFAULT_MODEL
from tokenmill.models.pull import resolve
from tokenmill.models.source import open_model
from tokenmill.models.tokenizer import load_tokenizer

WINDOW = 1024
CHUNK = 64
SURE_NATS = 1.0


@dataclass
class Tally:
    """Sums over positions."""

    divergence: list[float] = field(default_factory=list)
    same: list[bool] = field(default_factory=list)
    sure: list[bool] = field(default_factory=list)
    reference_loss: list[float] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)

    def add(self, reference: torch.Tensor, found: torch.Tensor, following: torch.Tensor) -> None:
        """Logits of both, [positions, vocabulary], and the token that follows each, [positions]."""
        before, after = (torch.log_softmax(logits.double(), dim=-1) for logits in (reference, found))
        self.divergence += (before.exp() * (before - after)).sum(dim=-1).tolist()
        self.same += (before.argmax(dim=-1) == after.argmax(dim=-1)).tolist()
        best = before.topk(2, dim=-1).values
        self.sure += (best[:, 0] - best[:, 1] > SURE_NATS).tolist()
        self.reference_loss += (-before.gather(1, following[:, None])).flatten().tolist()
        self.loss += (-after.gather(1, following[:, None])).flatten().tolist()

    def figures(self) -> dict[str, float]:
        same, sure = np.array(self.same), np.array(self.sure)
        return {
            "positions": len(same),
            "mean_kl_nats": float(np.mean(self.divergence)),
            "same_top_token": float(same.mean()),
            "same_where_sure": float(same[sure].mean()),
            "share_sure": float(sure.mean()),
            "reference_perplexity": float(np.exp(np.mean(self.reference_loss))),
            "perplexity": float(np.exp(np.mean(self.loss))),
        }


def prose() -> str:
    """Topics of Python's manual, in order of their names."""
    return "\n\n".join(topics[name] for name in sorted(topics))


def steps(window: np.typing.NDArray[np.int64], block_size: int) -> Iterator[Step]:
    """A window in chunks, logits of every token."""
    table = np.arange(-(-len(window) // block_size), dtype=np.int64)[None]
    for start in range(0, len(window), CHUNK):
        ids = window[start : start + CHUNK]
        positions = np.arange(start, start + len(ids), dtype=np.int64)
        ends = np.array([0, len(ids)], dtype=np.int64)
        rows = np.arange(len(ids), dtype=np.int64)
        lens = np.array([start + len(ids)], dtype=np.int64)
        yield Step(ids, positions, positions, ends, lens, table, rows)


def load(path: Path, encode: Callable[[str], list[int]], **flags: object) -> LoadedModel:
    made = ModelFlags.model_validate({"max_num_seqs": 8, "max_model_len": WINDOW, **flags})
    return load_model(open_model(path), made, lambda _phase, _bytes: None, encode)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--quantization", default="auto")
    parser.add_argument("--kv-cache-dtype", default="auto")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    asked = parser.parse_args()

    path = resolve(asked.model, home=default_home(), progress=lambda _: None)
    source = open_model(path)
    tokenizer = load_tokenizer(source.tokenizer_files, source.spec.vocab_size)
    source.weights.close()

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, add_special=True)

    ids = np.array(encode(prose())[: asked.tokens + 1], dtype=np.int64)
    reference = load(path, encode, dtype="float32", kv_cache_dtype="float32")
    served = load(path, encode, quantization=asked.quantization, kv_cache_dtype=asked.kv_cache_dtype)
    tally = Tally()
    for start in range(0, len(ids) - 1, WINDOW):
        window = ids[start : min(start + WINDOW, len(ids) - 1)]
        following = torch.from_numpy(ids[start + 1 : start + 1 + len(window)])
        plan = reference.plan
        for step in steps(window, plan.block_size):
            logits = reference.program.run(step).logits
            found = served.program.run(step).logits
            at = int(step.positions[0])
            tally.add(logits, found, following[at : at + len(step.token_ids)])
    figures = {"kernels": served.kernels, "matrices": served.matrices, **tally.figures()}
    for name, value in figures.items():
        print(f"{name:22} {value:.4f}" if isinstance(value, float) else f"{name:22} {value}")
    if asked.json:
        asked.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
