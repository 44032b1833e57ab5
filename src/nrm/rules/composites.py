"""Composites: which rule each kind of step gets, by name, by mapping, or chosen for the network."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from nrm.capture import NONNEGATIVE, Combine, Linear, Multiply, Node, Pointwise, Softmax, Source, Tape
from nrm.errors import RuleError
from nrm.operators import Centering
from nrm.rules.between import Between, Entries
from nrm.rules.rules import LRP0, AlphaBeta, Epsilon, Flat, Gamma, Product, Rule, SoftmaxRule, Sum, ZBox, ZPlus

Choice = Rule | Product | Sum | SoftmaxRule
Matcher = str | type


@dataclass(frozen=True)
class Composite:
    """A rule for every kind of step. ``changes`` are looked at first, in order: name pattern, module type or kind."""

    name: str
    conv: Rule = field(default_factory=LRP0)
    linear: Rule = field(default_factory=LRP0)
    pool: Rule = field(default_factory=LRP0)
    norm: Rule = field(default_factory=LRP0)
    matmul: Rule = field(default_factory=LRP0)
    add: Rule = field(default_factory=LRP0)
    block: Rule = field(default_factory=Entries)
    first: Rule | None = None
    product: Product = field(default_factory=Product)
    softmax: SoftmaxRule | None = None
    bias: str = "input"
    changes: tuple[tuple[Matcher, Choice], ...] = ()

    def kind(self, kind: str) -> Rule:
        """The rule for a kind of linear step."""
        rule: Rule = getattr(self, kind)
        return rule

    def but(self, changes: Mapping[Matcher, Choice]) -> Composite:
        """The composite with some layers changed."""
        return replace(self, changes=(*changes.items(), *self.changes))


def _composites(low: Any = None, high: Any = None) -> dict[str, Composite]:
    eps, plus, ab = Epsilon(), ZPlus(), AlphaBeta(2.0, 1.0)
    return {
        "lrp-0": Composite("lrp-0"),
        "transformer": Composite("transformer"),
        "attn-lrp": Composite("attn-lrp", product=Product(gate=1.0, signal=1.0), softmax=SoftmaxRule()),
        "epsilon-plus": Composite("epsilon-plus", conv=plus, linear=eps, add=plus, bias="ignore"),
        "epsilon-plus-flat": Composite(
            "epsilon-plus-flat", conv=plus, linear=eps, add=plus, first=Flat(), bias="ignore"
        ),
        "epsilon-gamma-box": Composite("epsilon-gamma-box", conv=Gamma(0.25), linear=eps, first=ZBox(low, high)),
        "epsilon-gamma-flat": Composite("epsilon-gamma-flat", conv=Gamma(0.25), linear=eps, first=Flat()),
        "epsilon-alpha2-beta1": Composite("epsilon-alpha2-beta1", conv=ab, linear=eps),
        "epsilon-alpha2-beta1-flat": Composite("epsilon-alpha2-beta1-flat", conv=ab, linear=eps, first=Flat()),
    }


NAMES = tuple(_composites())
EXACT = "exact"
"""The composite of contrasts: every step is exact in the difference of the runs, and no other rule is needed."""
WORDS = {
    "gamma": "nrm.Gamma(0.25)", "zplus": "nrm.ZPlus()", "z": "nrm.ZPlus()", "plus": "nrm.ZPlus()",
    "alphabeta": "nrm.AlphaBeta(2, 1)", "ab": "nrm.AlphaBeta(2, 1)", "alpha2beta1": "nrm.AlphaBeta(2, 1)",
    "alpha1beta0": "nrm.AlphaBeta(1, 0)", "epsilon": "nrm.Epsilon()", "eps": "nrm.Epsilon()", "lrp": "nrm.LRP0()",
    "lrp0": "nrm.LRP0()", "flat": "nrm.Flat()", "wsquare": "nrm.WSquare()", "w2": "nrm.WSquare()",
    "zbox": "nrm.ZBox()", "zb": "nrm.ZBox()", "box": "nrm.ZBox()", "pass": "nrm.Pass()",
    "entryepsilon": "nrm.EntryEpsilon()", "gradient": "nrm.Gradient()", "occlusion": "nrm.Occlusion()",
    "integratedgradients": "nrm.IntegratedGradients()", "ig": "nrm.IntegratedGradients()", "shapley": "nrm.Shapley()",
}  # fmt: skip
"""Rules as people write them in words, without marks; a rule is an instance, only composites have names."""


def rule_in_words(text: str) -> str | None:
    """The rule that a word stands for, as it is written; None if it stands for none.

    >>> rule_in_words("gamma"), rule_in_words("Alpha-Beta"), rule_in_words("z+"), rule_in_words("smooth")
    ('nrm.Gamma(0.25)', 'nrm.AlphaBeta(2, 1)', 'nrm.ZPlus()', None)
    """
    return WORDS.get("".join(c for c in text.lower().removeprefix("nrm.") if c.isalnum()))


def composite(name: str, *, low: Any = None, high: Any = None) -> Composite:
    """The composite with this name. ``low`` and ``high`` are the input bounds of ``"epsilon-gamma-box"``.

    >>> composite("epsilon-plus-flat").first
    Flat()
    """
    known = _composites(low, high)
    if name not in known:
        near, rule = difflib.get_close_matches(name, NAMES, n=2), rule_in_words(name)
        raise RuleError(
            f"{name!r} is a rule, and only composites have names" if rule else f"unknown composite {name!r}",
            expected=", ".join(map(repr, NAMES)),
            hint=f"rules={rule}" if rule else f"rules={near[0]!r}" if near else None,
        )  # fmt: skip
    return known[name]


def resolve(rules: Any, tape: Tape) -> Composite:
    """Whatever the user gave as ``rules`` as one composite."""
    if isinstance(rules, Composite):
        return rules
    if isinstance(rules, str) and rules == EXACT:
        if tape.runs is None:
            raise RuleError(
                "exact rules are those of a contrast", got="rules='exact' without a reference",
                expected="a measure of a difference", hint="nrm.measure(model, x, against=reference)",
            )  # fmt: skip
        return Composite(EXACT)
    if isinstance(rules, str):
        return suggest(tape) if rules == "auto" else composite(rules)
    if isinstance(rules, Between):
        return Composite(repr(rules))
    if isinstance(rules, Rule):
        return Composite(
            repr(rules), conv=rules, linear=rules, add=rules,
            bias="ignore" if isinstance(rules, ZPlus | Flat) else "input",
        )  # fmt: skip
    if isinstance(rules, Mapping):
        return _from_mapping(rules, tape)
    if isinstance(rules, type) and issubclass(rules, Rule | Between):
        raise RuleError("a rule is an instance", got=rules.__name__, hint=f"nrm.{rules.__name__}()")
    raise RuleError(
        "these are not rules", got=type(rules).__name__,
        expected="a composite's name, a rule, a mapping from layer pattern, module type or kind to rule, or a rule "
        "between layers such as nrm.Gradient()",
    )  # fmt: skip


def _from_mapping(rules: Mapping[Any, Any], tape: Tape) -> Composite:
    base, changes = None, {}
    for key, value in rules.items():
        if isinstance(value, str | Composite):
            if key != "*":
                rule = rule_in_words(value) if isinstance(value, str) else None
                raise RuleError(
                    f"{key!r}: a rule is no text" if rule else f"{key!r}: a whole composite can only stand for '*'",
                    got=repr(value), hint=f"{{{key!r}: {rule}}}" if rule else None,
                )  # fmt: skip
            base = resolve(value, tape)
        elif isinstance(value, Rule | Product | Sum | SoftmaxRule):
            if not isinstance(key, str) and not (isinstance(key, type) and issubclass(key, nn.Module)):
                raise RuleError("not a layer pattern", got=repr(key), expected="a name pattern or a module type")
            changes[key] = value
        else:
            raise RuleError(f"{key!r}: not a rule", got=repr(value), expected="a rule such as nrm.ZPlus()")
    base = base or replace(composite("lrp-0"), name="mapping")
    if base.name == "mapping" and any(isinstance(r, ZPlus) for r in changes.values()):
        base = replace(base, add=ZPlus(), bias="ignore")
    _check_used(changes, tape)
    return base.but(changes)


def _check_used(changes: Mapping[Matcher, Choice], tape: Tape) -> None:
    names = _all_names(tape)
    for key, choice in changes.items():
        found = [node for node in tape.nodes if matches(key, node, names[node.index], tape)]
        if found and key != "*" and not any(_applies(choice, node) for node in found):
            raise RuleError(
                f"{choice!r} cannot apply to {key if isinstance(key, str) else key.__name__!r}",
                got=f"{found[0].name}: {found[0].function}",
                expected="a rule for linear steps and sums, nrm.Product for products, nrm.Sum for sums, "
                "nrm.SoftmaxRule for a softmax",
            )
        if not found:
            raise RuleError(
                f"no layer matches {key if isinstance(key, str) else key.__name__!r}",
                expected="a pattern such as 'features.*', '*/add', a module type, or a kind: conv, linear, pool, norm, "
                "matmul, softmax",
                hint="R.layers of a measure with rules='auto' lists the names",
            )


def _applies(choice: Choice, node: Node) -> bool:
    """Whether a choice means anything for a step of this kind."""
    op = node.op
    if isinstance(choice, Product):
        written = isinstance(op, Pointwise) and bool(op.factors)
        return isinstance(op, Multiply) or written or (isinstance(op, Combine) and op.kind == "matmul")
    if isinstance(choice, SoftmaxRule):
        return isinstance(op, Softmax)
    joins = isinstance(op, Combine) and op.joins
    return joins if isinstance(choice, Sum) else joins or isinstance(op, Linear)


def suggest(tape: Tape) -> Composite:
    """Usable numbers without options, from rules with positive parts where every step reads non-negative values.

    Graph networks get gamma; networks with convolutions z+, if no signed states are added; everything else LRP-0 with
    biases as inputs, and with attention the composite of transformers. On signed inputs and behind norms that subtract
    a mean, z+ loses mass in columns without a positive part, and gamma cancels more than LRP-0. A contrast needs no
    rule: its steps are exact.
    """
    if tape.runs is not None:
        return Composite(EXACT)
    if tape.graphs is None and any(node.heads is not None for node in tape.nodes):
        return composite("transformer")
    if _is_graph(tape):
        return resolve(Gamma(0.25), tape) if _reads_positive(tape, "conv", "linear") else composite("lrp-0")
    convolves = any(node.op.kind == "conv" for node in tape.nodes)
    plain = convolves and _reads_positive(tape, "conv") and not _adds_signed(tape)
    return composite("epsilon-plus-flat" if plain else "lrp-0")


def _is_graph(tape: Tape) -> bool:
    """Whether edges are given, or messages are summed over neighbours."""
    return tape.graphs is not None or any(node.op.kind == "propagate" for node in tape.nodes)


def _reads_positive(tape: Tape, *kinds: str) -> bool:
    """Whether steps of these kinds read non-negative values, as behind ReLUs, but for the first ones, and no norm
    subtracts a mean.
    """
    first = reads_input(tape)
    steps = [(node, node.op) for node in tape.nodes if isinstance(node.op, Linear)]
    if any(isinstance(op.map, Centering) for _, op in steps):
        return False
    read = [tape.nodes[node.inputs[0]].value for node, op in steps if op.kind in kinds and node.index not in first]
    return all(not h.numel() or float(h.amin()) >= 0 for h in read)


def _adds_signed(tape: Tape) -> bool:
    """Whether values below 0 are added and go on as they are, as in the state of a gated cell.

    A branch that ends in a convolution has a positive part, and an activation stops what has none.
    """
    for node in tape.nodes:
        if not isinstance(node.op, Combine) or not node.op.joins or node.op.kind in ("batchnorm", "matmul"):
            continue
        terms = [tape.nodes[i] for i in node.inputs]
        readers = [tape.nodes[i] for i in tape.consumers[node.index]]
        if (
            all(isinstance(term.op, Multiply | Source | Pointwise) for term in terms)
            and not all(reader.function in NONNEGATIVE for reader in readers)
            and node.value.numel()
            and float(node.value.amin()) < 0
        ):
            return True
    return False


def matches(key: Matcher, node: Node, names: list[str], tape: Tape) -> bool:
    """Whether a name pattern, module type or kind of step means this node."""
    if isinstance(key, type):
        return not isinstance(node.op, Source) and issubclass(tape.modules.get(node.module, object), key)
    return key == node.op.kind or any(fnmatch.fnmatchcase(name, key) for name in names)


def _all_names(tape: Tape) -> list[list[str]]:
    names: list[list[str]] = [[node.name] for node in tape.nodes]
    for name, calls in tape.names.items():
        for index in calls:
            names[index].append(name)
    leaves = set(tape.modules) - {path.rpartition(".")[0] for path in tape.modules}
    for node in tape.nodes:
        if isinstance(node.op, Linear) and node.module in leaves:
            names[node.index].append(node.module)  # its module's last op may be data movement
        if isinstance(node.op, Combine) and node.op.kind == "matmul":
            for half in node.inputs:
                names[half].append(node.name)
    return names


def choices(composite: Composite, tape: Tape) -> dict[int, Choice]:
    """The explicitly changed nodes: the first change that matches wins."""
    names = _all_names(tape)
    found: dict[int, Choice] = {}
    for node in tape.nodes:
        for key, choice in composite.changes:
            if matches(key, node, names[node.index], tape):
                found[node.index] = choice
                break
    return found


def split_products(composite: Composite, tape: Tape) -> Tape:
    """The tape with the products that got ``Product`` by name as products, also those that are one function as such.

    ``z * tanh(z)`` is one elementwise function of z, and all its relevance goes to z, unless its product is named.
    """
    if not any(isinstance(choice, Product) for _, choice in composite.changes):
        return tape
    nodes = list(tape.nodes)
    for i, choice in choices(composite, tape).items():
        op = nodes[i].op
        if isinstance(choice, Product) and isinstance(op, Pointwise) and op.factors:
            nodes[i] = nodes[i].with_op(Multiply((None,) * len(op.factors)), op.factors)
    return replace(tape, nodes=nodes)


def reads_input(tape: Tape) -> set[int]:
    """The linear steps that read the user's input, with only data movement and scaling in between."""
    close = {node.index for node in tape.sources if node.op.kind in ("input", "embedding")}
    first = set()
    for node in tape.nodes:
        if not any(i in close for i in node.inputs):
            continue
        if isinstance(node.op, Linear):
            first.add(node.index)
        elif isinstance(node.op, Combine) and (not node.op.joins or len(node.op.terms) == 1):
            close.add(node.index)
    return {i for i in first if tape.nodes[i].op.kind in ("conv", "linear")}
