"""Whether a request can ever be served: the first of admission's three questions."""

from __future__ import annotations

from dataclasses import dataclass

from tokenmill.core import bounds
from tokenmill.core.errors import ContextLengthExceeded
from tokenmill.core.request import GenerateRequest


@dataclass(frozen=True)
class Limits:
    """What this engine can serve.

    Attributes:
        max_model_len: longest prompt plus output of the model as configured, in tokens.
        kv_tokens: tokens the KV pool holds.
    """

    vocab_size: int
    max_model_len: int
    kv_tokens: int

    @property
    def longest(self) -> int:
        """Longest prompt plus output of one sequence. Its newest token needs no place in the pool."""
        return min(self.max_model_len, self.kv_tokens + 1)

    def check(self, request: GenerateRequest) -> int:
        """Returns how many tokens, prompt included, a choice may reach.

        Raises:
            InvalidRequest: a value outside the table, or a token outside the vocabulary.
            ContextLengthExceeded: it can never fit the model or the KV pool.
        """
        bounds.prompt(request.prompt_ids, self.vocab_size)
        bounds.sampling(request.sampling, self.vocab_size)
        prompt, asked = len(request.prompt_ids), request.sampling.max_tokens
        least = max(1, request.sampling.min_tokens) if asked is None else asked
        if prompt + least > self.longest:
            what = "model's maximum context length" if self.longest == self.max_model_len else "KV cache"
            raise ContextLengthExceeded(
                f"this {what} is {self.longest} tokens; the prompt has {prompt} and {least} were asked for: "
                "shorten the prompt or lower max_tokens"
            )
        return self.longest if asked is None else prompt + asked
