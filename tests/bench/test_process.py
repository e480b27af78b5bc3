import sys

import pytest

from tokenmill.bench.asking import ServerFailed, first_model
from tokenmill.bench.process import ServerProcess, mock_command
from tokenmill.core.errors import TokenmillError


async def test_a_server_is_usable_inside_and_gone_after() -> None:
    async with ServerProcess(mock_command("--script", '{"models": ["m"]}')) as server:
        assert server.model == "m"
        assert await first_model(server.url, {}) == "m"
    assert server.exit_code == 0
    with pytest.raises(ServerFailed):
        await first_model(server.url, {})


async def test_lines_before_the_ready_line_are_passed_over() -> None:
    script = (
        'print("loading");print(\'{"event":"progress"}\');print(\'{"event":"ready","url":"u","model":"m"}\')'
    )
    async with ServerProcess([sys.executable, "-c", script]) as server:
        assert (server.url, server.model) == ("u", "m")


async def test_a_server_that_ends_before_it_is_ready_is_an_error() -> None:
    with pytest.raises(TokenmillError, match="code 3"):
        async with ServerProcess([sys.executable, "-c", "raise SystemExit(3)"]):
            pass


async def test_a_server_that_never_gets_ready_is_stopped() -> None:
    server = ServerProcess([sys.executable, "-c", "import time; time.sleep(600)"], ready_timeout_s=0.5)
    with pytest.raises(TimeoutError):
        async with server:
            pass
    assert server.exit_code is not None
