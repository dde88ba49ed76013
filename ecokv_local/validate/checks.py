"""The comparisons of one filled context, in order: features, kept sets, moved rows, positions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ecokv_local import inspection, reference
from ecokv_local.config import EvictionConfig
from ecokv_local.context import Context
from ecokv_local.validate import cause
from ecokv_local.validate.compare import (
    F32,
    F64,
    FEATURES,
    KeptPair,
    compare_kept,
    feature_errors,
    first_of,
    layer_of,
    reference_array,
    score_error,
)
from ecokv_local.validate.dequantise import is_quantised
from ecokv_local.validate.jobs import First, Job, Protected
from ecokv_local.validate.moves import Moved, Moves
from ecokv_local.validate.read import Layer, read_layer
from ecokv_local.validate.report import Check, Difference, KeptReport, LayerReport, PolicyReport

if TYPE_CHECKING:
    from ecokv_local.reference import Features

#: Largest relative error of a feature, by what its rows are stored as.
TOLERANCE, TOLERANCE_QUANTISED = 1e-4, 1e-3
#: Share of positions that are expected to be equal end to end.
SHARE = 0.999


def tolerance_of(name: str, layer: Layer) -> float:
    """Tolerance of a feature; that of values goes by the type of V, all others by that of K."""
    kind = layer.type_v if name == "value_norm" else layer.type_k
    return TOLERANCE_QUANTISED if is_quantised(kind) else TOLERANCE


class Validation:
    """State of one validation of a context that was filled without evicting."""

    def __init__(
        self,
        context: Context,
        configs: Sequence[EvictionConfig],
        progress: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._context, self._progress = context, progress
        self.n_rows, self.n_query = context.n_rows, 0
        self._positions = inspection.positions(context)
        self.warnings: list[str] = []
        self.first = First()
        self.layers: list[LayerReport] = []
        self._read: list[Layer] = []
        self._gqa = configs[0].gqa  # of one command: the same for all policies
        self._native: dict[Protected, dict[str, F32]] = {
            (sinks, recent): inspection.features(context, sinks=sinks, recent=recent, gqa=self._gqa)
            for sinks, recent in dict.fromkeys((c.n_sinks, c.n_recent) for c in configs)
        }
        self._jobs = [self._job(config) for config in configs]
        self._kept: dict[str, list[KeptReport]] = {job.name: [] for job in self._jobs}
        self._moved: dict[str, Moved] = {}

    def _job(self, config: EvictionConfig) -> Job:
        context, name = self._context, config.policy
        pairs = config.pairs(context.n_tokens, max(1, context.bytes_per_row()))
        if config.raised(context.n_tokens):
            self.warnings.append(
                f"{name}: budget {config.budget} of {context.n_tokens} tokens is below the "
                f"smallest that works: {pairs} KV pairs stay"
            )
        if pairs >= self.n_rows:
            self.warnings.append(
                f"{name}: {self.n_rows} rows fit the budget of {pairs}: nothing is evicted"
            )
        native = self._native[config.n_sinks, config.n_recent]
        return Job(config, pairs, inspection.plan(native, config, pairs))

    def run(self) -> None:
        """All checks, layer by layer and then policy by policy."""
        n_layer = int(inspection.shape(self._context).n_layer)
        for index in range(n_layer):
            self._progress(f"layer {index + 1}/{n_layer}: features and kept sets")
            layer = read_layer(self._context, index, self._positions)
            self._read.append(layer)
            self.n_query = len(layer.query_ranks)
            self._layer(index, layer)
        moves = Moves(self._context, self._read, self._positions, self.first)
        self._moved = moves.run(self._jobs, self._progress)

    # ---- features

    def _layer(self, index: int, layer: Layer) -> None:
        k, v = layer.keys(), layer.values()

        def run(**change: Any) -> Features:
            usual = {
                "query_ranks": layer.query_ranks,
                "scale": layer.scale,
                "soft_cap": layer.soft_cap,
                "attn_sinks": layer.sinks,
                "gqa": self._gqa,
            }
            return reference.features(k, v, layer.queries, **(usual | change))

        found: dict[Protected, Features] = {}
        worst = dict.fromkeys(FEATURES, 0.0)
        for protected, arrays in self._native.items():
            usual = {"sinks": protected[0], "recent": protected[1]}
            expected = found[protected] = run(**usual)
            native = layer_of(arrays, index, layer.n_head_kv)
            errors = feature_errors(native, expected)
            for name, error in errors.items():
                worst[name] = max(worst[name], float(error.max(initial=0.0)))

            def again(_usual: dict[str, int] = usual, **change: Any) -> Features:
                return run(**(_usual | change))

            self._note_features(layer, native, expected, errors, again)
        told = LayerReport(
            layer=layer.layer,
            n_head=layer.n_head,
            n_head_kv=layer.n_head_kv,
            scale=layer.scale,
            soft_cap=layer.soft_cap,
            sinks=layer.sinks is not None,
            n_nonfinite=int((~next(iter(found.values())).finite).sum()),
            errors=worst,
            tolerances={name: tolerance_of(name, layer) for name in FEATURES},
        )
        self.layers.append(told)
        for job in self._jobs:
            self._kept_sets(index, layer, told, job, found[job.protected])

    def _note_features(
        self,
        layer: Layer,
        native: dict[str, F64],
        expected: Features,
        errors: dict[str, F64],
        again: cause.Rerun,
    ) -> None:
        tolerance = {name: tolerance_of(name, layer) for name in FEATURES}
        bad = {name: ~(error <= tolerance[name]) for name, error in errors.items()}
        mismatch = cause.Mismatch(layer, native, expected, bad, tolerance, again)

        def tell() -> Difference:
            head = mismatch.heads[0]
            name = next(name for name in FEATURES if bad[name][head].any())
            (at,) = first_of(bad[name][head])
            of_row = name != "head_m2"
            return Difference(
                check="features",
                policy=None,
                layer=layer.layer,
                head=head,
                rank=at if of_row else None,
                position=int(self._positions[at]) if of_row else None,
                what=name,
                native=float(native[name][head, at]),
                reference=float(reference_array(expected, name)[head, at]),
                error=float(errors[name][head, at]),
                cause=cause.of_features(mismatch),
            )

        if mismatch.names:
            self.first.offer("features", tell)

    # ---- kept sets

    def _kept_sets(
        self, index: int, layer: Layer, told: LayerReport, job: Job, expected: Features
    ) -> None:
        """Native sets against those that the reference makes of the native features, and of its
        own.
        """
        heads, arrays = layer.n_head_kv, self._native[job.protected]
        kept = job.plan[index, :heads]
        native = inspection.scores(arrays, job.config, job.pairs, index)[:heads]
        same, on_same = self._against(
            index, job, _with_native(expected, layer_of(arrays, index, heads))
        )
        own, on_own = self._against(index, job, expected)
        n_kept = int(kept.size)
        all_same = on_same.n_equal == n_kept

        def tell(check: Check) -> Difference:
            scores, pair = (same, on_same) if check == "kept" else (own, on_own)
            at = (pair.differ if check == "kept" else pair.wrong)[0]
            if check == "kept":
                why = cause.of_kept(job.name, native, same, kept, job.pairs, at[0])
            else:
                why = cause.of_end_to_end(told.ok, all_same, at[2])
            return self._kept_difference(check, layer, job, at, pair, (native, scores), why)

        if not all_same:
            self.first.offer("kept", lambda: tell("kept"))
        if on_own.n_wrong:
            self.first.offer("end_to_end", lambda: tell("end_to_end"))
        self._kept[job.name].append(
            KeptReport(
                layer=layer.layer,
                n_kept=n_kept,
                n_unequal=n_kept - on_same.n_equal,
                score_error=score_error(native, same),
                n_equal=on_own.n_equal,
                n_ties=n_kept - on_own.n_equal - on_own.n_wrong,
                n_wrong=on_own.n_wrong,
                bytes_unequal=0,
                positions_unequal=0,
            )
        )

    def _against(self, index: int, job: Job, features: Features) -> tuple[F32, KeptPair]:
        """Scores that the reference gives to features, and its set beside the native one."""
        scores = reference.scores(job.name, features, job.config, layer=index, budget=job.pairs)
        chosen = reference.select(scores, job.pairs, job.config)
        return scores, compare_kept(job.plan[index, : len(chosen)], chosen, scores)

    def _kept_difference(
        self,
        check: Check,
        layer: Layer,
        job: Job,
        at: tuple[int, int, float],
        pair: KeptPair,
        scores: tuple[F32, F32],
        why: str,
    ) -> Difference:
        head, rank, gap = at
        keeper = "native code" if at in pair.only_native else "the reference"
        return Difference(
            check=check,
            policy=job.name,
            layer=layer.layer,
            head=head,
            rank=rank,
            position=int(self._positions[rank]),
            what=f"score of a row that only {keeper} keeps",
            native=float(scores[0][head, rank]),
            reference=float(scores[1][head, rank]),
            error=gap,
            cause=why,
        )

    # ---- report

    def policy_reports(self) -> tuple[PolicyReport, ...]:
        """Of every policy, in the order asked for."""
        reports = [self._policy_report(job, self._moved[job.name]) for job in self._jobs]
        for report in reports:
            if report.share_equal < SHARE:
                self.warnings.append(
                    f"{report.policy}: {report.share_equal:.3%} of the kept positions are equal "
                    f"end to end, {SHARE:.1%} are expected"
                )
        return tuple(reports)

    def _policy_report(self, job: Job, moved: Moved) -> PolicyReport:
        layers = [
            replace(kept, bytes_unequal=n_bytes, positions_unequal=n_positions)
            for kept, n_bytes, n_positions in zip(
                self._kept[job.name], moved.n_bytes, moved.n_positions, strict=True
            )
        ]
        return PolicyReport(
            policy=job.name,
            budget=job.pairs,
            sinks=job.config.n_sinks,
            recent=job.config.n_recent,
            nominal_unequal=moved.n_nominal,
            layers=tuple(layers),
        )


def _with_native(expected: Features, native: dict[str, F64]) -> Features:
    """The reference's features with the native values in their place."""
    arrays: dict[str, Any] = {name: native[name] for name in FEATURES if name != "head_m2"}
    return replace(
        expected, finite=np.isfinite(native["key_norm"]), m2=native["head_m2"][:, 0], **arrays
    )
