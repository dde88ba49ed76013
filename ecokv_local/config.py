"""Settings of eviction and sampling. Frozen; a bad value is a UsageError at construction."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

from ecokv_local.budget import Budget
from ecokv_local.errors import BudgetError, UsageError
from ecokv_local.groups import parse_image_budget, parse_protect


@dataclass(frozen=True)
class PolicyInfo:
    """A way to choose what stays. ``sinks`` and ``recent`` are what it always keeps by default."""

    name: str
    summary: str
    sinks: int
    recent: int


_NO_HOST = ("ecokv", "none")
_SINGLE = (
    PolicyInfo("ecokv", "importance and diversity, weighed by the head's redundancy", 4, 8),
    PolicyInfo("mixkv", "attention and value norm against the direction of the key", 0, 8),
    PolicyInfo("snapkv", "attention of the window, pooled", 0, 8),
    PolicyInfo("keydiff", "keys of another direction than the mean", 0, 8),
    PolicyInfo("euclid", "keys far from the centroid", 0, 8),
    PolicyInfo("knorm", "keys of small norm", 0, 1),
    PolicyInfo("tova", "attention of the last query, one set for all heads of a layer", 0, 1),
    PolicyInfo("streaming", "sinks and the most recent tokens", 4, 1),
    PolicyInfo("critical", "half by attention, half by attention times value norm", 0, 8),
    PolicyInfo("vatp", "attention times value norm", 0, 8),
    PolicyInfo("pyramid", "`snapkv` with budgets that fall from the first layer to the last", 0, 8),
    PolicyInfo("ada", "`snapkv` with budgets that go to the heads that need them", 0, 8),
    PolicyInfo("random", "seeded noise, the control", 4, 8),
    PolicyInfo("none", "full cache", 0, 1),
)

#: By name: the single policies, then every ``<host>+ecokv``, which protects what ``ecokv`` does.
POLICIES: dict[str, PolicyInfo] = {p.name: p for p in _SINGLE} | {
    f"{p.name}+ecokv": PolicyInfo(
        f"{p.name}+ecokv", f"`ecokv` with the score of `{p.name}` as importance", 4, 8
    )
    for p in _SINGLE
    if p.name not in _NO_HOST
}

COMPOSE = ("or", "sum", "max", "prod")
HEAD_WEIGHT = ("both", "cos", "euclid")
POOLING = ("avg", "max")
GQA = ("mean", "max")
VALUE_NORM = ("off", "add", "mul")
LAYER_BUDGETS = ("even", "pyramid")
HEAD_BUDGETS = ("even", "ada")
PREFILL = ("auto", "whole", "chunked")


def _choice(name: str, value: object, choices: tuple[str, ...] | list[str]) -> None:
    if value not in choices:
        raise UsageError(
            f"{name} {value!r} does not exist", hint=f"choose from {', '.join(choices)}"
        )


def whole_number(name: str, value: object, low: int, high: int) -> None:
    """Raises UsageError unless ``value`` is an int in [low, high]."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise UsageError(f"{name} {value!r}: a whole number from {low} to {high} is needed")


def _plain(value: object) -> object:
    if isinstance(value, Budget):
        return str(value)
    return ",".join(value) if isinstance(value, tuple) else value


@dataclass(frozen=True)
class EvictionConfig:
    """What stays in the cache, and how that is decided (``docs/method.md``).

    Without a ``budget`` nothing is evicted and the model runs bit for bit as in llama.cpp.
    ``sinks`` and ``recent`` left out are the policy's own. ``window`` counts the queries that vote;
    ``kernel`` and ``pooling`` say how their attention is smoothed, ``gqa`` how it is taken over the
    query heads of a KV head; ``slack`` the tokens by which the
    cache may grow past the budget while an answer is generated. ``prefill`` "whole" reads a prompt
    whole and evicts once, "chunked" as soon as the budget and a micro-batch are full, "auto" whole
    if the memory that is free suffices.
    ``layer_budgets`` and ``head_budgets`` share the budget out unevenly, with any policy: the last
    layer of a pyramid keeps 1/``beta`` of it, every head of ``ada`` is sure of the share ``floor``.
    ``shrink`` gives memory back while an answer is generated; the next prompt takes what it needs.
    ``image_budget``, a number or a share such as "25%", is what every image keeps at least of its
    KV pairs; ``protect`` names texts that stay whole: "system", "question".
    """

    policy: str = "ecokv"
    budget: Budget | str | int | None = None
    sinks: int | None = None
    recent: int | None = None
    window: int = 8
    kernel: int = 5
    pooling: Literal["avg", "max"] = "avg"
    gqa: Literal["mean", "max"] = "mean"
    compose: Literal["or", "sum", "max", "prod"] = "or"
    head_weight: Literal["both", "cos", "euclid"] | float = "both"
    value_norm: Literal["off", "add", "mul"] = "off"
    lam: float = 0.5
    seed: int = 0
    slack: int = 64
    prefill: Literal["auto", "whole", "chunked"] = "auto"
    layer_budgets: Literal["even", "pyramid"] = "even"
    head_budgets: Literal["even", "ada"] = "even"
    beta: float = 20.0
    floor: float = 0.2
    shrink: bool = True
    image_budget: Budget | str | int | None = None
    protect: tuple[str, ...] | str = ()

    def __post_init__(self) -> None:
        _choice("policy", self.policy, list(POLICIES))
        if self.budget is not None:
            object.__setattr__(self, "budget", Budget.parse(self.budget))
        whole_number("sinks", self.n_sinks, 0, 2**20)
        whole_number("recent", self.n_recent, 1, 2**20)  # the next position follows on the last row
        whole_number("window", self.window, 1, 1024)
        whole_number("slack", self.slack, 1, 2**20)
        whole_number("seed", self.seed, 0, 2**32 - 1)
        whole_number("kernel", self.kernel, 1, 1023)
        if self.kernel % 2 == 0:
            raise UsageError(f"kernel {self.kernel}: an odd number is needed")
        _choice("prefill", self.prefill, PREFILL)
        _choice("pooling", self.pooling, POOLING)
        _choice("gqa", self.gqa, GQA)
        _choice("compose", self.compose, COMPOSE)
        _choice("value_norm", self.value_norm, VALUE_NORM)
        if isinstance(self.head_weight, str):
            _choice("head_weight", self.head_weight, HEAD_WEIGHT)
        elif not 0 <= self.head_weight <= 1:
            raise UsageError(f"head_weight {self.head_weight}: a number from 0 to 1 is needed")
        for name in ("lam", "floor"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"{name} {getattr(self, name)}: a number from 0 to 1 is needed")
        if not 1 <= self.beta <= 2**20:
            raise UsageError(f"beta {self.beta}: a number from 1 on is needed")
        _choice("layer_budgets", self.layer_budgets, LAYER_BUDGETS)
        _choice("head_budgets", self.head_budgets, HEAD_BUDGETS)
        self._check_groups()
        if isinstance(self.budget, Budget) and self.budget.unit == "pairs" and self.enabled:
            self.pairs(0, 1)

    def _check_groups(self) -> None:
        object.__setattr__(self, "protect", parse_protect(self.protect))
        if self.image_budget is not None:
            object.__setattr__(self, "image_budget", parse_image_budget(self.image_budget))
        if (self.protect or self.image_budget is not None) and (self.pyramid or self.ada):
            raise UsageError(
                "image-budget and protect need a budget that is the same in all layers and heads",
                hint="leave them out, or use another policy than pyramid and ada",
            )

    def plain(self) -> dict[str, Any]:
        """The settings as JSON gives them back: budgets as they are written, names in one text."""
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self)}

    @property
    def n_sinks(self) -> int:
        """First tokens that always stay."""
        return POLICIES[self.policy].sinks if self.sinks is None else self.sinks

    @property
    def n_recent(self) -> int:
        """Last tokens that always stay."""
        return POLICIES[self.policy].recent if self.recent is None else self.recent

    @property
    def pyramid(self) -> bool:
        """Whether budgets differ between layers."""
        return self.layer_budgets == "pyramid" or self.policy.partition("+")[0] == "pyramid"

    @property
    def ada(self) -> bool:
        """Whether budgets differ between the heads of a layer."""
        return self.head_budgets == "ada" or self.policy.partition("+")[0] == "ada"

    @property
    def enabled(self) -> bool:
        """Whether anything will ever be evicted."""
        return self.budget is not None and self.policy != "none"

    def budget_min(self) -> int:
        """Smallest budget that works: what always stays and one more."""
        return self.n_sinks + self.n_recent + 1

    def raised(self, n_prompt: int) -> bool:
        """Whether a share of a prompt of ``n_prompt`` tokens is below ``budget_min``."""
        budget = self.budget
        return (
            isinstance(budget, Budget)
            and budget.unit == "percent"
            and budget.resolve(n_prompt, 1) < min(n_prompt, self.budget_min())
        )

    def pairs(self, n_prompt: int, bytes_per_pair: int) -> int:
        """The budget in KV pairs per layer and head.

        Raises BudgetError if it is below ``budget_min``. A share of a prompt that comes out below
        is raised to it: the user asked for a ratio, not for a number that cannot work.
        """
        budget = Budget.parse(self.budget if self.budget is not None else 1)
        pairs = budget.resolve(n_prompt, bytes_per_pair)
        if budget.unit == "percent":
            return max(pairs, self.budget_min())
        if pairs < self.budget_min():
            raise BudgetError(
                f"budget {budget} ({pairs} KV pairs) is below {self.budget_min()}: "
                f"{self.n_sinks} sinks + {self.n_recent} recent + 1",
                hint=f"use --budget {self.budget_min()} or more, or lower --sinks and --recent",
            )
        return pairs


@dataclass(frozen=True)
class SamplingConfig:
    """How the next token is drawn. ``temp`` 0 is greedy: the same input gives the same answer.

    ``grammar`` in GBNF constrains every answer; its root rule is ``root``.
    """

    temp: float = 0.0
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    seed: int | None = None
    grammar: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.temp <= 100:
            raise UsageError(f"temp {self.temp}: a number from 0 on is needed")
        whole_number("top_k", self.top_k, 0, 2**31 - 1)  # 0 is off
        for name in ("top_p", "min_p"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"{name} {getattr(self, name)}: a number from 0 to 1 is needed")
        if self.seed is not None and not 0 <= self.seed < 2**32:
            raise UsageError(f"seed {self.seed}: a whole number from 0 to {2**32 - 1} is needed")


def changed(config: Any, **values: Any) -> Any:
    """A copy of a frozen config with some fields set anew; unknown names are a UsageError."""
    known = {f.name for f in fields(config)}
    for name in values:
        if name not in known:
            raise UsageError(
                f"there is no setting {name!r}", hint=f"known: {', '.join(sorted(known))}"
            )
    return type(config)(**{f.name: getattr(config, f.name) for f in fields(config)} | values)
