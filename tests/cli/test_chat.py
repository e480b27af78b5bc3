"""A conversation at the prompt: history, leaving, stopping, failing."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Iterator, Sequence

import pytest

from tokenmill.bench.mock import MockServer
from tokenmill.bench.mock_script import MockScript
from tokenmill.cli import app
from tokenmill.cli.chat import converse
from tokenmill.cli.conversation import Message, show_text
from tokenmill.core.errors import InvalidRequest
from tokenmill.core.request import SamplingParams

PARAMS = SamplingParams(temperature=0.0, max_tokens=8)


class FakeModel:
    """Answers with the number of messages it was shown; `steps` may put an exception in an answer's way."""

    name = "fake"

    def __init__(self, *faults: BaseException | None) -> None:
        self.faults = list(faults)
        self.asked: list[list[Message]] = []

    async def reply(self, messages: Sequence[Message], sampling: SamplingParams) -> AsyncGenerator[str, None]:
        self.asked.append(list(messages))
        yield "answer "
        fault = self.faults.pop(0) if self.faults else None
        if fault is not None:
            raise fault
        yield str(len(messages))


def talk(
    model: FakeModel, lines: Sequence[str | BaseException], monkeypatch: pytest.MonkeyPatch
) -> FakeModel:
    script = iter(lines)

    def read(prompt: str) -> str:
        line = next(script, None)
        if line is None:
            raise EOFError
        if isinstance(line, BaseException):
            raise line
        return line

    monkeypatch.setattr("builtins.input", read)
    with asyncio.Runner() as runner:
        converse(model, PARAMS, runner)
    return model


def test_each_turn_sees_the_turns_before(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = talk(FakeModel(), ["one", "", "  two  "], monkeypatch)
    assert capsys.readouterr().out == "answer 1\nanswer 3\n"
    assert model.asked[1] == [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "answer 1"},
        {"role": "user", "content": "two"},
    ]


def test_exit_leaves_and_clear_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    model = talk(FakeModel(), ["one", "/clear", "two", "/exit", "three"], monkeypatch)
    assert [len(messages) for messages in model.asked] == [1, 1]


def test_ctrl_c_at_the_prompt_does_not_leave(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = talk(FakeModel(), [KeyboardInterrupt(), "one"], monkeypatch)
    assert len(model.asked) == 1
    assert "/exit" in capsys.readouterr().err


def test_ctrl_c_stops_an_answer_and_keeps_what_was_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = talk(FakeModel(KeyboardInterrupt()), ["one", "two"], monkeypatch)
    assert "answer  [stopped]\n" in capsys.readouterr().out
    assert model.asked[1][1] == {"role": "assistant", "content": "answer "}


def test_an_error_is_shown_and_the_conversation_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = talk(FakeModel(InvalidRequest("too long")), ["one", "two"], monkeypatch)
    assert len(model.asked) == 2
    assert "error: too long" in capsys.readouterr().err


def test_a_model_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    show_text("a\x1b[31mb\x07\r\x9bc\n\té")
    assert capsys.readouterr().out == "a[31mbc\n\té"


@pytest.fixture
def server() -> Iterator[MockServer]:
    """The mock server on a loop of its own, as another process would be."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    mock = MockServer(MockScript())
    asyncio.run_coroutine_threadsafe(mock.start(), loop).result(10)
    try:
        yield mock
    finally:
        asyncio.run_coroutine_threadsafe(mock.close(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def say(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    script = iter(lines)

    def read(prompt: str) -> str:
        with contextlib.suppress(StopIteration):
            return next(script)
        raise EOFError

    monkeypatch.setattr("builtins.input", read)


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/"])
def test_chat_talks_to_a_running_server(
    server: MockServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], path: str
) -> None:
    say(monkeypatch, "hello", "again")
    assert app.run(["chat", "--url", server.url + path, "--max-tokens", "5"]) == 0
    shown = capsys.readouterr()
    answers = shown.out.splitlines()
    assert len(answers) == 2 and all(len(line.split()) == 5 for line in answers)
    assert shown.err.startswith(f"{server.script.models[0]}. ")


def test_a_server_that_refuses_is_an_error_that_repeats_its_words(
    server: MockServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server.set_script(MockScript(error_status=429))
    say(monkeypatch, "hello")
    assert app.run(["chat", "--url", server.url]) == 1
    assert "error: the server answered 429: the mock was told to refuse" in capsys.readouterr().err


def test_a_script_learns_of_a_failed_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for at_a_terminal, code in ((False, 1), (True, 0)):
        say(monkeypatch, "hello")
        monkeypatch.setattr("sys.stdin.isatty", lambda found=at_a_terminal: found, raising=False)
        assert app.run(["chat", "--url", "http://127.0.0.1:9", "--model", "m"]) == code
        assert "error: http://127.0.0.1:9 does not answer: " in capsys.readouterr().err


def test_no_server_is_a_failure_that_names_the_address(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["chat", "--url", "http://127.0.0.1:9"]) == 1
    assert capsys.readouterr().err.startswith("error: http://127.0.0.1:9 does not answer: ")


def test_an_address_without_a_scheme_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["chat", "--url", "localhost:8000"]) == 2
    assert "must start with http:// or https://, not 'localhost:8000'" in capsys.readouterr().err
