"""Requests that must be refused, each with the code and the field of its error.

They hold for any server of a model named `org/tiny` with a context of 512 tokens and a vocabulary below
60,000.
"""

from __future__ import annotations

from support.gateways import chat, completion


def message(**fields: object) -> dict[str, object]:
    return {**chat(), "messages": [{"role": "user", "content": "hi", **fields}]}


def parts(*items: object) -> dict[str, object]:
    return message(content=list(items))


# body, code, param
CHAT_CASES: dict[str, tuple[object, str, str | None]] = {
    "too many parts": (
        chat() | {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * 1025}]},
        "invalid_value",
        "messages[0].content",
    ),
    "no model": ({"messages": [{"role": "user", "content": "x"}]}, "invalid_value", "model"),
    "null model": (chat(model=None), "invalid_value", "model"),
    "other model": (chat(model="gpt-4o"), "model_not_found", "model"),
    "model of a wrong type": (chat(model=7), "invalid_value", "model"),
    "no messages": ({"model": "org/tiny"}, "invalid_value", "messages"),
    "empty messages": (chat(messages=[]), "invalid_value", "messages"),
    "messages as text": (chat(messages="hi"), "invalid_value", "messages"),
    "a message as text": (chat(messages=["hi"]), "invalid_value", "messages[0]"),
    "too many messages": (
        chat(messages=[{"role": "user", "content": ""}] * 2049),
        "invalid_value",
        "messages",
    ),
    "no role": (chat(messages=[{"content": "x"}]), "invalid_value", "messages[0].role"),
    "unknown role": (message(role="robot"), "invalid_value", "messages[0].role"),
    "role as a list": (message(role=["user"]), "invalid_value", "messages[0].role"),
    "user without content": (message(content=None), "invalid_value", "messages[0].content"),
    "content as a number": (message(content=5), "invalid_value", "messages[0].content"),
    "image part": (
        parts({"type": "image_url", "image_url": {"url": "http://x"}}),
        "unsupported_parameter",
        "messages[0].content[0].type",
    ),
    "part without type": (parts({"text": "x"}), "unsupported_parameter", "messages[0].content[0].type"),
    "part without text": (parts({"type": "text"}), "invalid_value", "messages[0].content[0].text"),
    "part as text": (parts("x"), "invalid_value", "messages[0].content[0]"),
    "unknown member of a message": (message(mood="glad"), "unsupported_parameter", "messages[0].mood"),
    "tool calls of a user": (message(tool_calls=[]), "unsupported_parameter", "messages[0].tool_calls"),
    "temperature too high": (chat(temperature=2.1), "invalid_value", "temperature"),
    "temperature below zero": (chat(temperature=-0.1), "invalid_value", "temperature"),
    "temperature as text": (chat(temperature="hot"), "invalid_value", "temperature"),
    "temperature as a truth": (chat(temperature=True), "invalid_value", "temperature"),
    "top_p of zero": (chat(top_p=0), "invalid_value", "top_p"),
    "top_k below -1": (chat(top_k=-2), "invalid_value", "top_k"),
    "top_k as a fraction": (chat(top_k=1.5), "invalid_value", "top_k"),
    "n of zero": (chat(n=0), "invalid_value", "n"),
    "n of a million": (chat(n=1_000_000), "invalid_value", "n"),
    "max_tokens of zero": (chat(max_tokens=0), "invalid_value", "max_tokens"),
    "max_tokens below zero": (chat(max_tokens=-1), "invalid_value", "max_tokens"),
    "its other name": (chat(max_completion_tokens=-1), "invalid_value", "max_completion_tokens"),
    "bounds that disagree": (chat(max_tokens=1, max_completion_tokens=2), "invalid_value", "max_tokens"),
    "min above max": (chat(max_tokens=1, min_tokens=2), "invalid_value", "min_tokens"),
    "too long": (chat("x " * 600), "context_length_exceeded", "messages"),
    "too much asked": (chat(max_tokens=1000), "context_length_exceeded", "messages"),
    "seed too large": (chat(seed=2**63), "invalid_value", "seed"),
    "empty stop": (chat(stop=""), "invalid_value", "stop"),
    "many stops": (chat(stop=["x"] * 17), "invalid_value", "stop"),
    "long stop": (chat(stop="x" * 257), "invalid_value", "stop"),
    "stop of numbers": (chat(stop=[1]), "invalid_value", "stop"),
    "stop token outside": (chat(stop_token_ids=[60_000]), "invalid_value", "stop_token_ids"),
    "stop token below zero": (chat(stop_token_ids=[-1]), "invalid_value", "stop_token_ids"),
    "bias of a word": (chat(logit_bias={"foo": 0}), "invalid_value", "logit_bias"),
    "bias outside": (chat(logit_bias={"60000": 1}), "invalid_value", "logit_bias"),
    "bias too strong": (chat(logit_bias={"3": 101}), "invalid_value", "logit_bias"),
    "bias as a list": (chat(logit_bias=[]), "invalid_value", "logit_bias"),
    "top_logprobs alone": (chat(top_logprobs=2), "invalid_value", "top_logprobs"),
    "too many top_logprobs": (chat(logprobs=True, top_logprobs=21), "invalid_value", "top_logprobs"),
    "logprobs as a number": (chat(logprobs=3), "invalid_value", "logprobs"),
    "stream as text": (chat(stream="yes"), "invalid_value", "stream"),
    "stream_options alone": (chat(stream_options={}), "invalid_value", "stream_options"),
    "stream_options as a list": (chat(stream=True, stream_options=[]), "invalid_value", "stream_options"),
    "unknown stream option": (
        chat(stream=True, stream_options={"include_usge": True}),
        "unsupported_parameter",
        "stream_options.include_usge",
    ),
    "stream option of a wrong type": (
        chat(stream=True, stream_options={"include_usage": 1}),
        "invalid_value",
        "stream_options.include_usage",
    ),
    "functions": (chat(functions=[{"name": "f"}]), "unsupported_parameter", "functions"),
    "audio": (chat(audio={"voice": "x"}), "unsupported_parameter", "audio"),
    "audio out": (chat(modalities=["text", "audio"]), "unsupported_parameter", "modalities"),
    "store": (chat(store=True), "unsupported_parameter", "store"),
    "flex tier": (chat(service_tier="flex"), "unsupported_parameter", "service_tier"),
    "user as a number": (chat(user=5), "invalid_value", "user"),
    "metadata of numbers": (chat(metadata={"a": 1}), "invalid_value", "metadata"),
    "a typing error": (chat(temprature=1), "unsupported_parameter", "temprature"),
    "something else": (chat(**{"x" * 500: 1}), "unsupported_parameter", "x" * 64),
    "a template of one's own": (chat(chat_template="{{ 1 }}"), "unsupported_parameter", "chat_template"),
}

COMPLETION_CASES: dict[str, tuple[object, str, str | None]] = {
    "no prompt": ({"model": "org/tiny"}, "invalid_value", "prompt"),
    "empty list": (completion([]), "invalid_value", "prompt"),
    "no tokens": (completion([[]]), "invalid_value", "prompt"),
    "a number": (completion(5), "invalid_value", "prompt"),
    "an object": (completion({"a": 1}), "invalid_value", "prompt"),
    "mixed": (completion(["a", 5]), "invalid_value", "prompt"),
    "mixed tokens": (completion([5, "a"]), "invalid_value", "prompt"),
    "truths": (completion([True, False]), "invalid_value", "prompt"),
    "token outside": (completion([60_000]), "invalid_value", "prompt"),
    "token below zero": (completion([-1]), "invalid_value", "prompt"),
    "huge token": (completion([10**30]), "invalid_value", "prompt"),
    "too many prompts": (completion(["a"] * 129), "invalid_value", "prompt"),
    "too many choices": (completion(["a"] * 128, n=3), "invalid_value", "n"),
    "too long": (completion("x " * 600), "context_length_exceeded", "prompt"),
    "no tokens asked": (completion(max_tokens=0), "invalid_value", "max_tokens"),
    "many logprobs": (completion(logprobs=6), "invalid_value", "logprobs"),
    "prompt_logprobs above the bound": (completion(prompt_logprobs=21), "invalid_value", "prompt_logprobs"),
    "prompt_logprobs of all": (completion(prompt_logprobs=-1), "invalid_value", "prompt_logprobs"),
    "prompt_logprobs in a stream": (
        completion(prompt_logprobs=1, stream=True),
        "invalid_value",
        "prompt_logprobs",
    ),
    "suffix": (completion(suffix="x"), "unsupported_parameter", "suffix"),
    "best_of below n": (completion(n=3, best_of=2), "invalid_value", "best_of"),
    "best_of above the bound": (completion(best_of=17), "invalid_value", "best_of"),
    "best_of in a stream": (completion(best_of=3, stream=True), "invalid_value", "best_of"),
    "best_of times prompts": (completion(["x"] * 17, best_of=16), "invalid_value", "best_of"),
    "messages": (completion(messages=[]), "unsupported_parameter", "messages"),
}

RAW_CASES: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "invalid_json"),
    "not JSON": (b"hello", "invalid_json"),
    "a list": (b"[]", "invalid_json"),
    "a text": (b'"x"', "invalid_json"),
    "null": (b"null", "invalid_json"),
    "cut off": (b'{"model":', "invalid_json"),
    "more behind": (b"{}{}", "invalid_json"),
    "single quotes": (b"{'model': 1}", "invalid_json"),
    "not a number": (b'{"temperature": NaN}', "invalid_json"),
    "infinity": (b'{"temperature": Infinity}', "invalid_json"),
    "overflow": (b'{"temperature": 1e999}', "invalid_json"),
    "a number of 5000 digits": (b'{"seed": ' + b"9" * 5000 + b"}", "invalid_json"),
    "not UTF-8": (b'{"model": "\xff"}', "invalid_json"),
    "encoded surrogate": (b'{"model": "\xed\xa0\x80"}', "invalid_json"),
    "lone high surrogate": (rb'{"model": "\ud800"}', "invalid_json"),
    "lone low surrogate": (rb'{"model": "\udc00"}', "invalid_json"),
    "UTF-16": ('{"model": 1}'.encode("utf-16"), "invalid_json"),
    "byte order mark": (b"\xef\xbb\xbf{}", "invalid_json"),
    "raw control character": (b'{"model": "\x00"}', "invalid_json"),
    "deep lists": (b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "invalid_json"),
    "unclosed lists": (b"[" * 1_000_000, "invalid_json"),
    "too many lists": (b'{"a":[' + b"[]," * 100_000 + b"1]}", "invalid_json"),
    "too many numbers": (b'{"a":[' + b"1," * 200_000 + b"1]}", "invalid_json"),
    "deep objects": (b'{"a":' * 65 + b"1" + b"}" * 65, "invalid_json"),
}
