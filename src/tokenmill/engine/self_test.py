"""Whether packed weights still give the model's answers: a fixed text through both, before any request."""

from __future__ import annotations

from dataclasses import dataclass

import torch

# Ordinary English, numbers, code and two more languages.
TEXT = (
    "The harbour was quiet that morning. Two fishermen mended their nets beside the wall, and an old dog "
    "slept in the shade of a blue boat. In 1969 the bridge carried 4,210 cars a day; by 2004 it was 31,500."
    "\n\n"
    "def mean(values):\n    if not values:\n        raise ValueError('no values')\n"
    "    return sum(values) / len(values)\n\n"
    "Ein Satz auf Deutsch, und noch einer. \u4eca\u5929\u5929\u6c14\u5f88\u597d\u3002"
)
TOKENS = 96
# Mean divergence from the unquantized model a format may have, in nats, by what was asked for. Four bits made
# of more lose more, and who names them knows; bfloat16 is not tested.
GATES: dict[str, float | None] = {"auto": 0.02, "int8": 0.02, "int4": 0.2, "none": None}


class FormatRefused(Exception):
    """Packed weights are below the gate. The message has the figures."""


@dataclass(frozen=True)
class Verdict:
    """What the test found.

    Attributes:
        divergence: mean Kullback-Leibler divergence of the packed model's next token from the unquantized
            one's, in nats.
        agreement: share of positions where both hold the same token for the likeliest.
        tokens: positions looked at.
    """

    divergence: float
    agreement: float
    tokens: int

    def __str__(self) -> str:
        return (
            f"KL {self.divergence:.4f} nats, same top token {self.agreement:.1%} over {self.tokens} positions"
        )


def compare(reference: torch.Tensor, found: torch.Tensor) -> Verdict:
    """Both are logits, [positions, vocabulary]."""
    before, after = (torch.log_softmax(logits.double(), dim=-1) for logits in (reference, found))
    divergence = (before.exp() * (before - after)).sum(dim=-1).mean()
    agreement = (before.argmax(dim=-1) == after.argmax(dim=-1)).double().mean()
    return Verdict(float(divergence), float(agreement), len(reference))


def require(verdict: Verdict, gate: float | None) -> None:
    """
    Raises:
        FormatRefused: the divergence is above `gate` nats, or no number.
    """
    if gate is not None and not verdict.divergence <= gate:
        raise FormatRefused(f"{verdict}; at most {gate} is allowed")
