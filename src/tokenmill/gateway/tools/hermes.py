"""Calls as Hermes, Qwen and SmolLM2 models write them: one tagged JSON object a call."""

from __future__ import annotations

from tokenmill.gateway.tools.syntax import Syntax

SYNTAX = Syntax(
    open="<tool_call>",
    close="</tool_call>",
    before="<tool_call>\n",
    between="\n</tool_call>\n<tool_call>\n",
    after="\n</tool_call>",
)
