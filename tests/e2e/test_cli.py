"""The command line as a user runs it: real processes, the real small model."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[2] / "README.md"
PROGRAM = str(Path(sys.executable).with_name("tokenmill"))
QUESTION = "Name the capital of France."
NAMED = ["--served-model-name", "smollm2-135m-instruct"]
SMALL = ["--num-kv-blocks", "64"]
ENV_SMALL = {"TOKENMILL_NUM_KV_BLOCKS": "64"}
WAIT_S = 120


def environment(**extra: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TOKENMILL_")}
    return kept | extra


def finish(*arguments: str, text: str = "", **extra: str) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end."""
    return subprocess.run(
        [PROGRAM, *arguments],
        input=text,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        env=environment(**extra),
        check=False,
    )


@contextlib.contextmanager
def running(*arguments: str, **extra: str) -> Iterator[subprocess.Popen[str]]:
    """A command under way; killed at the end if the test has not ended it."""
    process = subprocess.Popen(
        [PROGRAM, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**extra),
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def line_with(process: subprocess.Popen[str], word: str) -> str:
    """Reads standard output up to a line that holds `word`, and returns all that was read."""
    assert process.stdout is not None
    read = ""
    for line in process.stdout:
        read += line
        if word in line:
            return read
    pytest.fail(f"the process ended before it said {word!r}: {read}")


def readme_example(first_line: str, *, url: str) -> str:
    """What the README's Python example that begins so prints against the server at `url`."""
    text = README.read_text(encoding="utf-8")
    (code,) = (code for code in re.findall(r"```python\n(.*?)```", text, re.S) if code.startswith(first_line))
    code = code.replace("http://127.0.0.1:8000", url)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S, check=True
    )
    return done.stdout


def test_serve_tells_programs_what_it_does_answers_and_drains(small_model_path: Path) -> None:
    with running("serve", str(small_model_path), "--port", "0", "--json", *NAMED, *SMALL) as process:
        lines = [json.loads(line) for line in line_with(process, '"ready"').splitlines()]
        ready = lines[-1]
        assert list(ready) == ["event", "url", "model"]
        assert ready["model"] == NAMED[1]
        assert [line["phase"] for line in lines if line["event"] == "progress"] == ["read", "pool", "warm"]
        assert {part["name"] for part in lines[-2]["parts"]} >= {"weights", "kv cache"}
        assert "Paris" in readme_example("from openai import OpenAI", url=ready["url"])
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, out) == (0, "")
    assert "Traceback" not in err


def test_serve_shows_people_a_command_that_works(small_model_path: Path) -> None:
    arguments = ["serve", str(small_model_path), "--port", "0", "--served-model-name", "tiny", *SMALL]
    with running(*arguments, TOKENMILL_API_KEY="only-for-this-test") as process:
        shown = line_with(process, "Try:")
        assert process.stdout is not None
        example = "".join(process.stdout.readline() for _ in range(5))
        assert "\x1b" not in shown and "\r" not in shown
        assert re.search(r"weights +[\d.]+ MiB +[\d.]+ MiB", shown)
        assert "only-for-this-test" not in example
        answer = subprocess.run(
            ["bash", "-c", example],
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            env=environment(TOKENMILL_API_KEY="only-for-this-test"),
            check=True,
        )
        assert "Paris" in json.loads(answer.stdout)["choices"][0]["message"]["content"]
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=WAIT_S)
    assert process.returncode == 0


def test_chat_talks_to_a_server_and_to_a_model_of_its_own(small_model_path: Path) -> None:
    with running("serve", str(small_model_path), "--port", "0", "--json", *SMALL) as process:
        url = json.loads(line_with(process, '"ready"').splitlines()[-1])["url"]
        remote = finish("chat", "--url", url, text=f"{QUESTION}\n/exit\n")
    local = finish("chat", "--model", str(small_model_path), *SMALL, text=f"{QUESTION}\n")
    assert (remote.returncode, local.returncode) == (0, 0)
    assert "Paris" in remote.stdout
    assert local.stdout == remote.stdout


def test_run_prints_answer_memory_and_speed(small_model_path: Path) -> None:
    done = finish("run", QUESTION, "--model", str(small_model_path), *SMALL)
    assert done.returncode == 0
    first, *rest = done.stdout.splitlines()
    assert "Paris" in first
    assert any(line.split()[:1] == ["total"] for line in rest)
    assert re.search(r"\d+ output tokens, TTFT [\d.]+ s, [\d.]+ tokens/s", rest[-1])


def test_run_as_json_is_one_object(small_model_path: Path) -> None:
    done = finish(
        "run", QUESTION, "--json", "--max-tokens", "3", TOKENMILL_MODEL=str(small_model_path), **ENV_SMALL
    )
    (line,) = done.stdout.splitlines()
    result = json.loads(line)
    assert (result["finish_reason"], result["completion_tokens"]) == ("length", 3)
    assert result["ttft_s"] > 0 and result["tokens_per_s"] > 0
    assert all(part["measured_bytes"] is not None for part in result["memory"])


def test_a_taken_port_is_told_before_anything_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = finish("serve", "no/such-model", "--port", port)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: port {port} on 127.0.0.1 is in use")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])  # noqa: S104
def test_an_open_address_needs_a_key(host: str) -> None:
    done = finish("serve", "no/such-model", "--host", host)
    assert done.returncode == 2
    assert "set --api-key or TOKENMILL_API_KEY" in done.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_download_can_be_interrupted(tmp_path: Path, number: signal.Signals, code: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(WAIT_S)
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with running("pull", "some/model", HF_ENDPOINT=address, TOKENMILL_HOME=str(tmp_path)) as process:
            connection, _ = silent.accept()
            with connection:
                process.send_signal(number)
                _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == code
    assert err == "error: stopped before it was done\n"


def test_a_load_can_be_interrupted(small_model_path: Path) -> None:
    with running("serve", str(small_model_path), "--port", "0", "--json", *SMALL) as process:
        line_with(process, '"read"')
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 143
    assert json.loads(out.splitlines()[-1])["code"] == "interrupted"
    assert "Traceback" not in err


def test_help_comes_at_once() -> None:
    def seconds() -> float:
        start = time.perf_counter()
        assert finish("--help").returncode == 0
        return time.perf_counter() - start

    assert min(seconds() for _ in range(5)) < 0.3
