"""Every failure a user can meet: one class a kind, with the HTTP status and the sentence they read.

The sentence says what was wrong, which value, and what is allowed. It never holds a path of the
server, an address, a class name or another caller's text. It may quote what a caller or a file says, so it
is made one printable line of bounded length here, whatever that was.
"""

from __future__ import annotations

from typing import ClassVar

MAX_MESSAGE_CHARS = 1000


class TokenmillError(Exception):
    """Base of all expected failures.

    Attributes:
        status: HTTP status.
        type: OpenAI error type.
        code: machine-readable code, stable across releases.
        param: the request field at fault, when there is one.
        retry: what `x-should-retry` tells official clients; None leaves the choice to them.
        retry_after: seconds after which a retry makes sense.
    """

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    code: str = "internal_error"
    retry: ClassVar[bool | None] = None
    retry_after: ClassVar[int | None] = None

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        self.message = _one_line(message)
        super().__init__(self.message)
        self.param = param
        if code is not None:
            self.code = code


def _one_line(text: str) -> str:
    if not text.isprintable():
        text = "".join(
            char if char.isprintable() else char.encode("unicode_escape").decode()
            for char in text[:MAX_MESSAGE_CHARS]
        )
    return text if len(text) <= MAX_MESSAGE_CHARS else f"{text[: MAX_MESSAGE_CHARS - 3]}..."


class InvalidRequest(TokenmillError):
    """The caller sent something that can never work."""

    status = 400
    type = "invalid_request_error"
    code = "invalid_value"
    retry = False


class UnsupportedParameter(InvalidRequest):
    """A field this server does not know or does not implement."""

    code = "unsupported_parameter"


class ContextLengthExceeded(InvalidRequest):
    """Prompt plus asked-for output can never fit, in the model or in the KV pool."""

    code = "context_length_exceeded"


class Unauthorized(TokenmillError):
    status = 401
    type = "authentication_error"
    code = "invalid_api_key"
    retry = False


class Forbidden(TokenmillError):
    """A request that a web page of another site may have made; without a key nobody can tell."""

    status = 403
    type = "permission_error"
    code = "foreign_origin"
    retry = False


class NotFound(TokenmillError):
    status = 404
    type = "invalid_request_error"
    code = "not_found"
    retry = False


class ModelNotFound(NotFound):
    code = "model_not_found"


class MethodNotAllowed(TokenmillError):
    status = 405
    type = "invalid_request_error"
    code = "method_not_allowed"
    retry = False


class RequestTimeout(TokenmillError):
    """The caller took too long to send its request."""

    status = 408
    type = "invalid_request_error"
    code = "request_timeout"


class PayloadTooLarge(TokenmillError):
    status = 413
    type = "invalid_request_error"
    code = "payload_too_large"
    retry = False


class UnsupportedMediaType(TokenmillError):
    status = 415
    type = "invalid_request_error"
    code = "unsupported_media_type"
    retry = False


class HeadersTooLarge(TokenmillError):
    status = 431
    type = "invalid_request_error"
    code = "headers_too_large"
    retry = False


class Overloaded(TokenmillError):
    """No room now; the same request may work in a moment."""

    status = 503
    code = "overloaded"
    retry_after = 1


class NotReady(Overloaded):
    """Loading, warming, or not making progress."""

    code = "not_ready"


class Draining(Overloaded):
    """The server is stopping and takes no new work."""

    code = "draining"


class GenerationFailed(TokenmillError):
    """This one request broke inside the engine. Trying the same bytes again would break again."""

    code = "generation_failed"
    retry = False


class NotSupported(TokenmillError):
    """This model, as it is served, cannot do what the route is for."""

    status = 501
    type = "invalid_request_error"
    code = "not_supported"
    retry = False


class DeadlineExceeded(TokenmillError):
    """The time the caller gave is over."""

    status = 504
    code = "timeout"


class InternalError(TokenmillError):
    """A bug of this server. What went wrong is in the log, under the request id, and nowhere else."""

    retry = False


class EngineStopped(TokenmillError):
    """The engine ended before the request did."""

    status = 503
    code = "engine_stopped"
    retry_after = 1


class ConfigError(TokenmillError):
    """A flag, environment variable or YAML key that cannot be used."""

    code = "config_error"


class ModelFileError(TokenmillError):
    """A weight file, tokenizer or template that cannot be used."""

    code = "model_file_error"


class DownloadError(TokenmillError):
    """A model could not be fetched, or what came is not what was promised."""

    code = "download_error"


class UnknownModel(DownloadError):
    """There is no model of the name that was given."""

    code = "unknown_model"


class NativeUnavailable(TokenmillError):
    """Native code cannot be compiled or loaded on this machine."""

    code = "native_unavailable"


class InsufficientMemory(TokenmillError):
    """The plan does not fit what the machine has free."""

    code = "insufficient_memory"
