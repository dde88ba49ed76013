"""What was measured, and the rows that are told of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean, median, stdev
from typing import Any

from ecokv_local.bench.plan import Case


@dataclass(frozen=True)
class Sample:
    """One repetition of a case. Bytes of K and V are those of the buffers: at most, and while it
    decodes. Resident memory is None where the system does not tell.
    """

    tokens_per_s: float
    n_kept: int
    features_ms: float = 0.0
    plan_ms: float = 0.0
    apply_ms: float = 0.0
    kv_bytes: int = 0
    kv_peak_bytes: int = 0
    resident_bytes: int | None = None
    peak_resident_bytes: int | None = None

    @property
    def evict_ms(self) -> float:
        """The three steps together."""
        return self.features_ms + self.plan_ms + self.apply_ms


@dataclass
class Measured:
    """A case while it is measured."""

    case: Case
    samples: list[Sample] = field(default_factory=list)

    def mean(self, name: str, digits: int) -> float:
        """Of a field of the samples."""
        return round(fmean(getattr(sample, name) for sample in self.samples), digits)

    def sd(self, name: str, digits: int) -> float:
        """Standard deviation of a field of the samples, 0 for a single one."""
        values = [getattr(sample, name) for sample in self.samples]
        return round(stdev(values), digits) if len(values) > 1 else 0.0

    def most(self, name: str) -> int | None:
        """The largest of a field that may be unknown."""
        values = [getattr(sample, name) for sample in self.samples]
        return max((value for value in values if value is not None), default=None)


@dataclass(frozen=True)
class Prefill:
    """Tokens/s at which a prompt was read up to a depth, ours and of the unpatched libraries."""

    tokens_per_s: float
    stock_tokens_per_s: float | None = None


@dataclass(frozen=True)
class Row:
    """One case, measured: means and standard deviations over the repetitions.

    The prompt is read once: ``prefill_tokens_per_s`` is that of one reading up to the depth, the
    same for all rows of a depth. Resident memory is that of the process, without the copies of rows
    that the measuring holds, while the cache is made and (``resident_bytes``) while it decodes.
    Ratios are medians over the repetitions, which take turns: to the full cache of the same depth,
    to the full cache of a prompt as long as the budget, and to the unpatched libraries; None where
    there is nothing to compare with.
    """

    model: str
    threads: int
    cache: str
    policy: str
    budget: str
    depth: int
    n_kept: int
    note: str
    repetitions: int
    prefill_tokens_per_s: float | None
    features_ms: float
    plan_ms: float
    apply_ms: float
    evict_ms: float
    evict_sd_ms: float
    decode_tokens_per_s: float
    decode_sd_tokens_per_s: float
    kv_bytes: int
    kv_peak_bytes: int
    resident_bytes: int | None
    peak_resident_bytes: int | None
    kv_over_full: float | None
    decode_over_full: float | None
    decode_over_short: float | None
    decode_over_stock: float | None
    prefill_over_stock: float | None

    def to_dict(self) -> dict[str, Any]:
        """For JSON and CSV."""
        return asdict(self)


def rows(
    measured: Sequence[Measured],
    prefill: dict[int, Prefill],
    *,
    model: str = "",
    threads: int = 0,
    cache: str = "f16/f16",
) -> list[Row]:
    """Rows with their ratios; cases without a repetition are left out."""
    whole = {m.case: m for m in measured if m.samples}
    return [_row(m, whole, prefill, (model, threads, cache)) for m in whole.values()]


def _row(
    m: Measured,
    whole: dict[Case, Measured],
    prefill: dict[int, Prefill],
    about: tuple[str, int, str],
) -> Row:
    case = m.case
    full = whole.get(Case(case.depth))
    short = whole.get(case.short) if case.short is not None else None
    stock = None if case.stock else whole.get(Case(case.depth, stock=True))
    read = prefill.get(case.depth)
    speed = None if read is None else read.stock_tokens_per_s if case.stock else read.tokens_per_s
    last = m.samples[-1]
    return Row(
        *about,
        policy=_name(case),
        budget="-" if case.budget is None else str(case.budget),
        depth=case.depth,
        n_kept=last.n_kept,
        note="nothing to evict" if case.policy and last.n_kept == case.depth else "",
        repetitions=len(m.samples),
        prefill_tokens_per_s=None if speed is None else round(speed, 2),
        features_ms=m.mean("features_ms", 3),
        plan_ms=m.mean("plan_ms", 3),
        apply_ms=m.mean("apply_ms", 3),
        evict_ms=m.mean("evict_ms", 3),
        evict_sd_ms=m.sd("evict_ms", 3),
        decode_tokens_per_s=m.mean("tokens_per_s", 2),
        decode_sd_tokens_per_s=m.sd("tokens_per_s", 2),
        kv_bytes=last.kv_bytes,
        kv_peak_bytes=last.kv_peak_bytes,
        resident_bytes=m.most("resident_bytes"),
        peak_resident_bytes=m.most("peak_resident_bytes"),
        kv_over_full=_bytes_ratio(last, full),
        decode_over_full=_ratio(m, full),
        decode_over_short=_ratio(m, short),
        decode_over_stock=_ratio(m, stock),
        prefill_over_stock=None if case.policy or case.stock else _read_ratio(read),
    )


def _name(case: Case) -> str:
    if case.policy is not None:
        return case.policy.label
    return "stock" if case.stock else "full"


def _ratio(m: Measured, base: Measured | None) -> float | None:
    """Median over the repetitions that both have."""
    if base is None or base is m:
        return None
    pairs = zip(m.samples, base.samples, strict=False)
    return round(median(a.tokens_per_s / b.tokens_per_s for a, b in pairs), 4)


def _bytes_ratio(sample: Sample, full: Measured | None) -> float | None:
    if full is None or not sample.kv_bytes or not full.samples[-1].kv_bytes:
        return None
    return round(sample.kv_bytes / full.samples[-1].kv_bytes, 4)


def _read_ratio(read: Prefill | None) -> float | None:
    if read is None or read.stock_tokens_per_s is None:
        return None
    return round(read.tokens_per_s / read.stock_tokens_per_s, 4)
