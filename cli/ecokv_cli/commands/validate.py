"""`ecokv validate`: the native code against the reference, on the user's own model and prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ecokv_cli import engines, inputs, tables, values
from ecokv_cli.errors import FAILURE, OK, usage
from ecokv_cli.interrupts import Interrupts
from ecokv_cli.options import EVICTION, MODEL, OUTPUT, PROMPT, RUNTIME
from ecokv_cli.output import Output
from ecokv_cli.setting import chosen
from ecokv_cli.settings import Settings

if TYPE_CHECKING:
    from ecokv_local import EvictionConfig
    from ecokv_local.validate import Difference, KeptReport, LayerReport, PolicyReport, Report

_LEFT_OUT = (
    "max_tokens",
    "slack",
    "image_budget",
    "protect",
    "prefill",
    "no_stream",
    "stats",
)
_OWN: dict[str, dict[str, Any]] = {
    "budget": {"help": "KV pairs that the plans keep per layer and KV head [25%]."},
    "policy": {
        "metavar": "NAME|all",
        "help": "Policy to validate, or all of them [ecokv].",
        "parse": lambda text: text if text == "all" else values.policy(text),
    },
    "json": {"help": "One JSON object."},
}


NAME = "validate"
GROUPS = chosen((*MODEL, *PROMPT, *RUNTIME, *EVICTION, *OUTPUT), _OWN, _LEFT_OUT)
HELP = """Compare the native code with the reference, on your own model and prompt.

Reads the prompt without evicting; then features, scores, kept sets and moved rows of every layer
are compared with the reference in numba. Needs the extra `validate`. Ends with 1 on a mismatch.
"""
EPILOG = "Columns are explained in docs/usage.md."


def run(settings: Settings, out: Output, prompt: str | None) -> int:
    """Validate one prompt; returns the exit code."""
    from ecokv_local.validate import require_packages, validate

    require_packages()
    given = inputs.gather(settings, prompt, out)
    if given.prompt is None:
        raise usage("there is no prompt to validate with", "give -p TEXT, or pipe the prompt in")
    eviction = _eviction(settings)
    n_ctx = settings.get("ctx_size")
    out.status("loading the model")
    with Interrupts(), engines.open_engine(settings, out.status) as engine:
        report = validate(
            engine,
            given.prompt,
            given.images,
            policies=settings.get("policy", "ecokv"),
            eviction=eviction,
            system=settings.get("system"),
            n_ctx=engine.n_ctx_train if n_ctx == 0 else n_ctx,
            progress=out.status,
        )
    out.still()
    if out.as_json:
        out.record(report.to_dict())
    else:
        _show(report)
        for warning in report.warnings:
            out.warn(warning)
    return OK if report.ok else FAILURE


def _eviction(settings: Settings) -> EvictionConfig:
    """What the plans are made with; the budget has to fit the policy that is asked for."""
    from ecokv_local import EvictionConfig

    given = settings.given(budget="budget", sinks="sinks", recent="recent", window="window")
    policy = settings.get("policy", "all")
    return EvictionConfig(**({} if policy == "all" else {"policy": policy}), **given)


# ---- what is printed


def _show(report: Report) -> None:
    """Two tables, what was left out, and the first difference."""
    tables.show(_title(report), _LAYER_HEADER, [_layer_row(report, i) for i in _indices(report)])
    tables.show("policies", _POLICY_HEADER, [_policy_row(policy) for policy in report.policies])
    for skipped in report.skipped:
        print(f"skipped: {skipped.policy}: {skipped.reason}")
    if report.first_difference is None:
        print(f"ok: native code and reference agree ({report.t_ms / 1000:.1f} s)")
    else:
        print("\n".join(_difference(report, report.first_difference)))


def _title(report: Report) -> str:
    tokens = f"{report.n_prompt} tokens"
    if report.n_image_tokens:
        tokens += f" ({report.n_image_tokens} of pictures)"
    return (
        f"{report.model}: {tokens}, {report.n_query} queries vote, "
        f"cache {report.cache_type_k}/{report.cache_type_v}, "
        f"flash attention {'on' if report.flash_attn else 'off'}; largest relative errors"
    )


_ERRORS = {
    "key_norm": "|k|",
    "value_norm": "|v|",
    "head_m2": "m2",
    "key_cos": "cos",
    "key_euc": "euc",
    "attn": "attn",
    "attn_last": "last",
}
_SETS = ("kept", "end to end", "rows", "positions")
_LAYER_HEADER = ("layer", "heads", "scale", *_ERRORS.values(), *_SETS)
_POLICY_HEADER = ("policy", "budget", "sinks", "recent", *_SETS)


def _indices(report: Report) -> range:
    return range(len(report.layers))


def _layer_row(report: Report, index: int) -> list[str]:
    layer = report.layers[index]
    return [
        str(layer.layer),
        f"{layer.n_head}/{layer.n_head_kv}",
        _scale(layer),
        *(_error(layer, name) for name in _ERRORS),
        *_sets([policy.layers[index] for policy in report.policies], 0),
    ]


def _scale(layer: LayerReport) -> str:
    text = f"{layer.scale:.4g}"
    if layer.soft_cap:
        text += f" cap {layer.soft_cap:g}"
    return text + " sinks" if layer.sinks else text


def _error(layer: LayerReport, name: str) -> str:
    error = layer.errors[name]
    return f"{error:.1e}{'' if error <= layer.tolerances[name] else '!'}"


def _policy_row(policy: PolicyReport) -> list[str]:
    numbers = [str(n) for n in (policy.budget, policy.sinks, policy.recent)]
    cells = _sets(policy.layers, policy.nominal_unequal)
    if policy.share_equal < 1:
        cells[1] += f" ({policy.share_equal:.3%} equal)"
    return [policy.policy, *numbers, *cells]


def _sets(layers: Sequence[KeptReport], nominal: int) -> list[str]:
    """Counts over layers: what differs, or that nothing does."""

    def total(name: str) -> int:
        return sum(getattr(layer, name) for layer in layers)

    wrong, ties = total("n_wrong"), total("n_ties")
    differ = f"{wrong} differ!" if wrong else (_ties(ties) if ties else "equal")
    counts = (total("n_unequal"), total("bytes_unequal"), total("positions_unequal") + nominal)
    kept, rows, positions = ("equal" if n == 0 else f"{n} differ!" for n in counts)
    return [kept, differ, rows, positions]


def _ties(n: int) -> str:
    return "1 tie" if n == 1 else f"{n} ties"


def _difference(report: Report, first: Difference) -> list[str]:
    """The first difference, as lines."""
    policy = f", policy {first.policy}" if first.policy else ""
    lines = [
        f"mismatch: {first.check.replace('_', ' ')}{policy}",
        f"  where      layer {first.layer}, KV head {first.head}"
        + ("" if first.rank is None else f", row {first.rank} (position {first.position})"),
        f"  what       {first.what}",
        f"  native     {_value(first.native)}",
        f"  reference  {_value(first.reference)}",
        f"  error      {first.error:.3g}",
        f"  layers     {_spread(report)}",
        f"  cause      {first.cause}",
    ]
    return lines


def _value(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.9g}"


def _spread(report: Report) -> str:
    """How many layers are affected by anything."""
    bad = [
        layer.layer
        for i, layer in enumerate(report.layers)
        if not (layer.ok and all(policy.layers[i].ok for policy in report.policies))
    ]
    return f"{len(bad)} of {len(report.layers)} differ"
