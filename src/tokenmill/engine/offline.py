"""The engine as a library: prompts in, completions out, no server."""

from __future__ import annotations

import queue
import sys
from collections.abc import Generator, Iterator, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from types import TracebackType
from typing import TextIO
from uuid import uuid4

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from tokenmill.core.bus import Bus
from tokenmill.core.delta import Delta, TokenLogprob, Usage
from tokenmill.core.errors import InvalidRequest, NotSupported, TokenmillError
from tokenmill.core.flag_rules import build
from tokenmill.core.flags import ModelFlags
from tokenmill.core.home import default_home
from tokenmill.core.request import GenerateRequest, SamplingParams
from tokenmill.engine.core import Output
from tokenmill.engine.worker import EngineWorker
from tokenmill.models.catalogue import DEFAULT_MODEL
from tokenmill.models.pull import resolve
from tokenmill.models.source import open_model


@dataclass
class Choice:
    """One answer to a prompt."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    usage: Usage | None = None
    prompt_logprobs: list[TokenLogprob | None] = field(default_factory=list)

    def take(self, delta: Delta) -> None:
        self.text += delta.text
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs
        self.prompt_logprobs += delta.prompt_logprobs
        if delta.finish_reason is not None:
            self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason
            self.usage = delta.usage


@dataclass
class Completion:
    """What became of one prompt: its choices, or the error that ended it."""

    prompt: str
    choices: list[Choice]
    error: TokenmillError | None = None

    @property
    def text(self) -> str:
        """The first choice's text."""
        return self.choices[0].text


class _Collector:
    """A sink that hands outputs to the calling thread."""

    def __init__(self) -> None:
        self._outputs: queue.SimpleQueue[list[Output]] = queue.SimpleQueue()

    def deliver(self, outputs: list[Output]) -> None:
        self._outputs.put(outputs)

    def get(self) -> list[Output]:
        return self._outputs.get()


class Engine:
    """A loaded model in this process.

    Args:
        model: catalogue name, file, folder or hub id.
        flags: fields of `core.flags.ModelFlags`.
        bus: receives the engine's events.

    Raises:
        ConfigError: an unknown flag, or a value it does not take.
        TokenmillError: the model cannot be fetched, read, or does not fit.

    Example:
        >>> with Engine() as engine:
        ...     print(engine.generate("The capital of France is", SamplingParams(temperature=0))[0].text)
    """

    def __init__(self, model: str = DEFAULT_MODEL, *, bus: Bus | None = None, **flags: object) -> None:
        checked = build(ModelFlags, flags)
        path = resolve(model, home=default_home(), progress=lambda _: None)
        self.worker = EngineWorker(open_model(path), checked, bus or Bus(), name=model)
        self.worker.start()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the engine and gives its memory back."""
        self.worker.stop()

    def generate(
        self,
        prompts: str | Items[str] | Items[Items[int]],
        sampling: SamplingParams | Items[SamplingParams] | None = None,
        *,
        progress: bool = True,
    ) -> list[Completion]:
        """Completes prompts (texts, or lists of token ids), all batched together.

        Args:
            sampling: one for all, or one a prompt; default `SamplingParams()`.
            progress: show a progress bar on the terminal.

        Returns:
            One completion a prompt, in order. A prompt that fails carries its error; the others are answered.
        """
        texts: list[str | Items[int]] = [prompts] if isinstance(prompts, str) else list(prompts)
        params = self._params(sampling, len(texts))
        requests = [self._request(text, param) for text, param in zip(texts, params, strict=True)]
        found = {
            request.request_id: Completion(
                text if isinstance(text, str) else "", [Choice() for _ in range(request.sampling.n)]
            )
            for text, request in zip(texts, requests, strict=True)
        }
        with _Progress(len(requests), shown=progress) as bar:
            for output in self._outputs(requests):
                completion = found[output.request_id]
                completion.error = output.error or completion.error
                if output.delta is not None:
                    completion.choices[output.delta.index].take(output.delta)
                bar.advance(output)
        return list(found.values())

    def stream(
        self, prompt: str | Items[int], sampling: SamplingParams | None = None
    ) -> Generator[Delta, None, None]:
        """Yields the deltas of one prompt as they come; closing the generator ends the request.

        Raises:
            TokenmillError: the request was refused or failed.
        """
        for output in self._outputs([self._request(prompt, sampling or SamplingParams())]):
            if output.error is not None:
                raise output.error
            if output.delta is not None:
                yield output.delta

    def embed(self, texts: str | Items[str] | Items[Items[int]]) -> npt.NDArray[np.float32]:
        """Embeddings of texts (or lists of token ids), [texts, hidden], each of unit length.

        Raises:
            NotSupported: neither the model nor the flag `pooling` says how.
            TokenmillError: a text was refused or failed.
        """
        if self.worker.pooling is None:
            raise NotSupported("the model does not say how to make embeddings: set pooling to mean or last")
        given: list[str | Items[int]] = [texts] if isinstance(texts, str) else list(texts)
        requests = [
            replace(self._request(text, SamplingParams()), pooling=self.worker.pooling) for text in given
        ]
        found: dict[str, bytes] = {}
        for output in self._outputs(requests):
            if output.error is not None:
                raise output.error
            if output.delta is not None:
                found[output.request_id] = output.delta.embedding
        rows = (np.frombuffer(found[request.request_id], dtype="<f4") for request in requests)
        return np.array([*rows], dtype=np.float32).reshape(len(requests), self.worker.hidden)

    def chat_prompt(self, messages: Items[Mapping[str, object]]) -> list[int]:
        """Token ids of a conversation, by the model's chat template."""
        if self.worker.chat_template is None:
            raise InvalidRequest("this model has no chat template; use generate with a plain prompt")
        text = self.worker.chat_template.render(messages)
        return self.worker.tokenizer.encode(text, add_special=False)

    def chat(
        self, messages: Items[Mapping[str, object]], sampling: SamplingParams | None = None
    ) -> Completion:
        """Answers one conversation."""
        return self.generate([self.chat_prompt(messages)], sampling, progress=False)[0]

    def _params(
        self, sampling: SamplingParams | Items[SamplingParams] | None, count: int
    ) -> Items[SamplingParams]:
        if sampling is None or isinstance(sampling, SamplingParams):
            return [sampling or SamplingParams()] * count
        if len(sampling) != count:
            raise InvalidRequest(f"{count} prompts need {count} sampling parameters, not {len(sampling)}")
        return sampling

    def _request(self, prompt: str | Items[int], params: SamplingParams) -> GenerateRequest:
        ids = self.worker.tokenizer.encode(prompt, add_special=True) if isinstance(prompt, str) else prompt
        return GenerateRequest(
            request_id=uuid4().hex, prompt_ids=tuple(ids), sampling=params, model=self.worker.name
        )

    def _outputs(self, requests: Items[GenerateRequest]) -> Iterator[Output]:
        """Submits requests and yields what they get; abandoning the iterator aborts what is left."""
        collector = _Collector()
        open_ids = {request.request_id for request in requests}
        try:
            for request in requests:
                try:
                    matchers = self.worker.matchers(request).result() if request.sampling.grammar else ()
                except TokenmillError as refusal:
                    collector.deliver([Output(request.request_id, error=refusal, done=True)])
                else:
                    self.worker.submit(request, collector, matchers)
            while open_ids:
                for output in collector.get():
                    if output.done:
                        open_ids.discard(output.request_id)
                    yield output
        finally:
            for request_id in open_ids:
                self.worker.abort(request_id)


class _Progress:
    """A progress bar over requests, with tokens a second; silent where no person looks."""

    def __init__(self, total: int, *, shown: bool, stream: TextIO | None = None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        console = Console(file=stream or sys.stderr)
        self._bar = Progress(
            TextColumn("prompts"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[rate]}"),
            console=console,
            transient=True,
            disable=not (shown and console.is_terminal),
        )
        self._task = self._bar.add_task("prompts", total=total, rate="")
        self._tokens = 0

    def __enter__(self) -> _Progress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def advance(self, output: Output) -> None:
        self._tokens += len(output.delta.token_ids) if output.delta else 0
        elapsed = self._bar.tasks[0].elapsed or 0.0
        rate = f"{self._tokens / elapsed:.0f} tok/s" if elapsed > 0 else ""
        self._bar.update(self._task, advance=1 if output.done else 0, rate=rate)
