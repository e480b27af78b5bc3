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
        prompt = len(request.prompt_ids)
        if request.pooling is not None:
            self._check_fits(prompt, 0)
            return prompt
        sampling = request.sampling
        bounds.sampling(sampling, self.vocab_size)
        bounds.reported_logprobs(prompt, sampling.prompt_logprobs)
        asked = sampling.max_tokens
        self._check_fits(prompt, max(1, sampling.min_tokens) if asked is None else asked)
        return self.longest if asked is None else prompt + asked

    def _check_fits(self, prompt: int, least: int) -> None:
        """`least` is the output that was asked for. With none, the prompt's last token needs a place too."""
        longest = self.longest if least else min(self.max_model_len, self.kv_tokens)
        if prompt + least > longest:
            what = "model's maximum context length" if longest == self.max_model_len else "KV cache"
            raise ContextLengthExceeded(
                f"this {what} is {longest} tokens; the prompt has {prompt} and {least} were asked for: "
                "shorten the prompt or lower max_tokens"
            )
