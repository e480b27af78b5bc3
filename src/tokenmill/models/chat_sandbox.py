"""The Jinja environment chat templates run in: no Python internals, no mutation, bounded work.

Jinja's immutable sandbox keeps a template away from internals. On top of it stand allow-lists (filters,
methods, globals) and a rewriting of the parsed template that passes loops, literals, results and output
through `chat_limits`.
"""

from __future__ import annotations

from collections.abc import Callable
from types import BuiltinMethodType
from typing import Any

from jinja2 import TemplateSyntaxError, Undefined, nodes, pass_context
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from tokenmill.models import chat_limits as limits


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_FILTERS = _words(
    "abs capitalize count d default dictsort first float items last length list lower map max min reject "
    "rejectattr reverse select selectattr sort title trim unique upper"
)
_METHODS: dict[type, frozenset[str]] = {
    str: _words(
        "capitalize casefold count endswith find index isalnum isalpha isascii isdecimal isdigit islower "
        "isnumeric isspace istitle isupper join lower lstrip partition removeprefix removesuffix replace "
        "rfind rindex rpartition rsplit rstrip split splitlines startswith strip swapcase title upper"
    ),
    dict: _words("copy get items keys values"),
    list: _words("copy count index"),
    tuple: _words("count index"),
}
# Objects of the template's own making; what begins with an underscore is refused before this is asked.
_OPEN_TYPES = (Namespace, LoopContext, Macro, Undefined)

# Names no template can write.
_EACH, _MADE, _BUILT, _CONCAT = "· each", "· made", "· built", "· concat"


class GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}` marks what a model wrote.

    For serving it is its body, in a scope of its own.
    """

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


@pass_context
def _write(context: Context, value: object) -> str:
    # Asking for the context keeps Jinja from calling this while it compiles, when there is no budget.
    result = limits.text(value)
    limits.BUDGET.get().write(len(result))
    return result


class ChatSandbox(ImmutableSandboxedEnvironment):
    """Compiles chat templates. `BUDGET` must be set while one is rendered."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def __init__(self, functions: dict[str, Callable[..., object]]) -> None:
        # optimized=False: constant expressions are not computed at compile time, where nothing bounds them.
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            finalize=_write,
            cache_size=0,
            extensions=[GenerationTag, "jinja2.ext.loopcontrols"],
        )
        self.filters = {name: self.filters[name] for name in _FILTERS} | {
            "indent": limits.indent,
            "int": limits.to_int,
            "join": limits.join,
            "replace": limits.replace,
            "round": limits.rounded,
            "safe": limits.text,
            "string": limits.text,
            "tojson": limits.to_json,
            _EACH: limits.each,
            _MADE: limits.made,
            _BUILT: limits.built,
            _CONCAT: limits.concat,
        }
        self.globals = {"range": self.globals["range"], "dict": dict, "namespace": Namespace} | functions

    def _generate(
        self, source: nodes.Template, name: str | None, filename: str | None, defer_init: bool = False
    ) -> str:
        return super()._generate(_Guard().visit(source), name, filename, defer_init)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if not super().is_safe_attribute(obj, attr, value):
            return False
        return isinstance(obj, _OPEN_TYPES) or attr in _METHODS.get(type(obj), ())

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        return None if wrapped is None else limits.format_text(value.__self__, wrapped)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        limits.binary(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call_filter(self, *args: Any, **kwargs: Any) -> Any:
        # Filters called by name at run time, as `map` does; those written with a bar go through `_Guard`.
        return limits.made(super().call_filter(*args, **kwargs))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        # Underscored names, as in the parent: keyword arguments of the template must not meet them.
        limits.BUDGET.get().step()
        if isinstance(__obj, LoopContext) and args:
            args = (limits.each(args[0]), *args[1:])
        elif isinstance(__obj, BuiltinMethodType) and isinstance(__obj.__self__, str):
            # The two methods whose result can be larger than what goes in. Neither takes keywords.
            if __obj.__name__ == "join":
                return limits.join(args[0] if args else (), __obj.__self__)
            if __obj.__name__ == "replace":
                return limits.replace(__obj.__self__, *args)
        result = super().call(__context, __obj, *args, **kwargs)
        return limits.built(result) if __obj is dict else limits.made(result)


class _Guard(NodeTransformer):
    """Passes what a template does through the functions of `chat_limits`."""

    def visit_Output(self, node: nodes.Output) -> nodes.Output:  # noqa: N802
        # Literal text becomes an expression, so that it is charged in loops, too.
        node.nodes = [
            nodes.Const(part.data, lineno=part.lineno)
            if isinstance(part, nodes.TemplateData)
            else self.visit(part)
            for part in node.nodes
        ]
        return node

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.iter = _through(_EACH, node.iter)
        return node

    def visit_Filter(self, node: nodes.Filter) -> nodes.Node:  # noqa: N802
        return _through(_MADE, self.generic_visit(node))

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _through(_MADE, node) if isinstance(node.arg, nodes.Slice) else node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _through(_CONCAT, nodes.Tuple(node.nodes, "load", lineno=node.lineno))

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802
        return _through(_BUILT, self.generic_visit(node))

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802
        return _through(_BUILT, self.generic_visit(node))

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _through(_BUILT, node) if node.ctx == "load" else node

    def visit_EvalContextModifier(self, node: nodes.EvalContextModifier) -> nodes.Node:  # noqa: N802
        raise TemplateSyntaxError("autoescape is not supported", node.lineno)

    visit_ScopedEvalContextModifier = visit_EvalContextModifier  # noqa: N815


def _through(name: str, node: nodes.Node) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)
