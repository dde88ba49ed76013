"""Moved rows: every plan is applied to the same cache and compared byte for byte."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from ecokv_local import inspection
from ecokv_local.context import Context
from ecokv_local.errors import StateError
from ecokv_local.validate import cause
from ecokv_local.validate.compare import I32, Bytes, by_head, first_of, gathered
from ecokv_local.validate.jobs import First, Job
from ecokv_local.validate.read import Layer
from ecokv_local.validate.report import Difference
from ecokv_local.validate.state import SavedSequence


@dataclass(frozen=True)
class Moved:
    """What one apply got wrong: bytes of K and V and positions of every layer; positions of cells,
    which belong to no layer.
    """

    n_bytes: tuple[int, ...]
    n_positions: tuple[int, ...]
    n_nominal: int


class Moves:
    """Applies plans to a context whose layers were read; ``positions`` [T] are those of its
    rows.
    """

    def __init__(
        self, context: Context, layers: Sequence[Layer], positions: I32, first: First
    ) -> None:
        self._context, self._layers, self._positions = context, layers, positions
        self._first = first

    def run(self, jobs: Sequence[Job], progress: Callable[[str], None]) -> dict[str, Moved]:
        """By policy. Raises StateError if the rows cannot be put back between two of them."""
        saved = SavedSequence(self._context)
        result = {}
        for i, job in enumerate(jobs):
            progress(f"moved rows: {job.name}")
            if i > 0:
                saved.restore()
                self._check_restored()
            inspection.apply(self._context, job.plan)
            result[job.name] = self._compare(job)
        return result

    def _check_restored(self) -> None:
        for index, layer in enumerate(self._layers):
            for value, raw in ((False, layer.raw_k), (True, layer.raw_v)):
                now = inspection.rows(self._context, index, value=value)
                if not np.array_equal(now, raw):
                    raise StateError(
                        f"layer {layer.layer}: the rows were not put back as they were"
                    )

    def _compare(self, job: Job) -> Moved:
        told = inspection.kept(self._context)
        n_bytes, n_positions = [], []
        for index, layer in enumerate(self._layers):
            n_bytes.append(self._bytes(job, index, layer))
            moved = told[index, : layer.n_head_kv]
            n_positions.append(self._places(job, index, layer, moved, n_bytes[-1] == 0))
        return Moved(tuple(n_bytes), tuple(n_positions), self._nominal(job))

    def _bytes(self, job: Job, index: int, layer: Layer) -> int:
        """Bytes of K and V that are not those of the rows that the plan keeps."""
        keep = job.plan[index, : layer.n_head_kv]
        wrong = 0
        for value, before in ((False, layer.raw_k), (True, layer.raw_v)):
            raw = inspection.rows(self._context, index, value=value)
            after, expected = by_head(raw, layer.n_head_kv), gathered(before, keep)
            n = int((after != expected).sum())
            wrong += n
            if n:
                kind = "V" if value else "K"
                tell = partial(
                    _row_difference, job, layer, keep, kind, before, after, self._positions
                )
                self._first.offer("rows", tell)
        return wrong

    def _places(self, job: Job, index: int, layer: Layer, moved: I32, rows_agree: bool) -> int:
        """Positions of kept rows that are not those of their tokens; moved ``[H, k]``."""
        keep = job.plan[index, : layer.n_head_kv]
        wrong = moved != self._positions[keep]
        if wrong.any():
            head, at = first_of(wrong)
            self._offer_position(
                job, layer, head, int(keep[head, at]), int(moved[head, at]), rows_agree
            )
        return int(wrong.sum())

    def _nominal(self, job: Job) -> int:
        """Cells whose position is not that of the last row that any layer or head keeps there."""
        keeps = [job.plan[i, : layer.n_head_kv].max(0) for i, layer in enumerate(self._layers)]
        last = np.max(keeps, axis=0)
        told = inspection.positions(self._context)
        wrong = told != self._positions[last]
        if wrong.any():
            (at,) = first_of(wrong)
            self._offer_position(job, self._layers[0], 0, int(last[at]), int(told[at]), True)
        return int(wrong.sum())

    def _offer_position(
        self, job: Job, layer: Layer, head: int, rank: int, native: int, rows_agree: bool
    ) -> None:
        right = int(self._positions[rank])
        self._first.offer(
            "positions",
            lambda: Difference(
                check="positions",
                policy=job.name,
                layer=layer.layer,
                head=head,
                rank=rank,
                position=right,
                what="position of a kept row",
                native=float(native),
                reference=float(right),
                error=float(abs(native - right)),
                cause=cause.of_positions(native, right, rows_agree),
            ),
        )


def _row_difference(
    job: Job, layer: Layer, keep: I32, what: str, before: Bytes, after: Bytes, positions: I32
) -> Difference:
    """The first row of the first head that is not what it should be."""
    expected = gathered(before, keep)
    bad = (after != expected).any(-1)  # [k, H]
    (head,) = first_of(bad.any(0))
    (at,) = first_of(bad[:, head])
    (byte,) = first_of(after[at, head] != expected[at, head])
    return Difference(
        check="rows",
        policy=job.name,
        layer=layer.layer,
        head=head,
        rank=int(keep[head, at]),
        position=int(positions[keep[head, at]]),
        what=f"byte {byte} of the row of {what}",
        native=f"0x{int(after[at, head, byte]):02x}",
        reference=f"0x{int(expected[at, head, byte]):02x}",
        error=float((after[at, head] != expected[at, head]).sum()),
        cause=cause.of_rows(before, after, expected, keep, head, at),
    )
