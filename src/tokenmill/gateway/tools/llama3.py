"""Calls as Llama 3 models write them: a JSON object that is the whole answer, sometimes after a token."""

from __future__ import annotations

from tokenmill.gateway.tools.syntax import Syntax

SYNTAX = Syntax(
    open="<|python_tag|>",
    before="",
    between="; ",
    after="",
    head='{"name": "{name}", "parameters": ',
    bare=True,
)
