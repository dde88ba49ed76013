"""How a batch is shown: a bar on a terminal, lines elsewhere, events for programs."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ecokv_cli import tables
from ecokv_cli.errors import OK, SOME_FAILED
from ecokv_cli.output import INTERVAL, Output, is_terminal, visible

if TYPE_CHECKING:
    from ecokv_local.caption import Batch, Result
    from ecokv_local.caption.estimate import Estimate

#: Failures that the summary lists; the manifest has all of them.
LISTED = 50


def progress(batch: Batch, out: Output) -> Show:
    """The kind that fits the streams."""
    if out.as_json:
        return Events(batch, out)
    if is_terminal(sys.stderr) and not out.quiet:
        return Bar(batch, out)
    return Show(batch, out)


class Show:
    """Plain lines on standard error. A context manager around the run."""

    def __init__(self, batch: Batch, out: Output) -> None:
        from ecokv_local.caption.progress import Progress

        self.batch, self.out = batch, out
        self.counts = batch.plan.counts()
        self.progress = Progress(self.counts["caption"])
        self._said = time.monotonic()
        batch.on_start = self.progress.begin

    def __enter__(self) -> Show:
        if self.progress.total:
            self.begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def begin(self) -> None:
        """Before the first picture."""
        self.out.note(f"{_pictures(self.progress.total)} to caption{self._skipped()}")

    def result(self, result: Result) -> None:
        """A picture is finished."""
        self.progress.take(result)
        if result.error is not None:
            self.line(f"failed: {result.error.message}")
        elif result.answer is not None:
            for warning in result.answer.warnings:
                self.warn(warning)
        self.step()

    def line(self, text: str) -> None:
        """A line that stays."""
        if not self.out.quiet:
            self.out.note(text)

    def warn(self, text: str) -> None:
        """A warning, once."""
        self.out.warn(text)

    def step(self) -> None:
        """Show where it stands, now and then."""
        if time.monotonic() - self._said >= INTERVAL:
            self._said = time.monotonic()
            self.out.note(figures_line(self.progress.figures()))

    def stop(self) -> None:
        """Take away what does not stay."""

    def end(self) -> int:
        """The summary; returns how many failed, now or before."""
        failed = [(r.path, r.error.message) for r in self.progress.failures if r.error is not None]
        failed += [(path, error["message"]) for path, error in self.batch.failed_before]
        if not self.out.quiet or failed:
            self._summary(failed)
        return len(failed)

    def _summary(self, failed: list[tuple[str, str]]) -> None:
        figures = self.progress.figures()
        rows = [
            ("captioned", str(self.progress.done)),
            ("failed", str(self.progress.failed)),
            *((label, str(n)) for label, n in self._others() if n),
        ]
        if self.progress.total:
            rows += [
                ("time", duration(figures["seconds"])),
                ("speed", speed(figures)),
                ("memory", _mebibytes(figures["rss_bytes"])),
            ]
        if self.progress.cut_off:
            rows.append(("cut off at the limit of tokens", str(self.progress.cut_off)))
        tables.show("", ("captions", ""), rows, stream=sys.stderr)
        if failed:
            shown = [(path, _reason(path, message)) for path, message in failed[:LISTED]]
            tables.show("failed", ("file", "reason"), shown, text_columns=2, stream=sys.stderr)
            if len(failed) > LISTED:
                more = len(failed) - LISTED
                self.out.show(f"and {more} more, see {self.batch.manifest_path}")
            if self.batch.failed_before:
                self.out.note("--retry-failed tries those again that failed before")

    def _others(self) -> list[tuple[str, int]]:
        return [
            ("done before", self.counts["done"]),
            ("with captions of others", self.counts["existing"]),
            ("failed before", self.counts["failed"]),
            ("made otherwise, kept", self.counts["changed"]),
            ("edited, kept", self.counts["edited"]),
        ]

    def _skipped(self) -> str:
        others = ", ".join(f"{n} {label}" for label, n in self._others() if n)
        return f" ({others})" if others else ""


class Bar(Show):
    """A bar on standard error; nothing in it is parsed as markup."""

    _live: Any = None

    def begin(self) -> None:
        from rich.console import Console
        from rich.live import Live

        super().begin()
        console = Console(stderr=True, highlight=False, markup=False, emoji=False)
        self._live = Live(console=console, refresh_per_second=4, get_renderable=self._render)

    def _render(self) -> Any:
        from rich.text import Text

        figures = self.progress.figures()
        total = self.progress.total
        n = figures["captioned"] + figures["failed"]
        filled = 24 * n // total if total else 24
        return Text(
            f"{'█' * filled}{'░' * (24 - filled)} {figures_line(figures)}",
            no_wrap=True,
            overflow="ellipsis",
        )

    def result(self, result: Result) -> None:
        self._start()
        super().result(result)

    def _start(self) -> None:
        """With the first picture: before, loading the model has a spinner of its own."""
        if self._live is not None and not self._live.is_started:
            self.out.still()
            self._live.start()

    def line(self, text: str) -> None:
        self._aside(lambda: Show.line(self, text))

    def warn(self, text: str) -> None:
        self._aside(lambda: Show.warn(self, text))

    def _aside(self, say: Any) -> None:
        """Something to say above the bar."""
        started = self._live is not None and self._live.is_started
        if started:
            self._live.stop()
        say()
        if started:
            self._live.start()

    def step(self) -> None:
        """The bar draws itself."""

    def stop(self) -> None:
        if self._live is not None and self._live.is_started:
            self._live.stop()


class Events(Show):
    """JSON lines on standard output: ``start``, ``caption`` and ``failed``, ``end``."""

    def begin(self) -> None:
        return

    def __enter__(self) -> Show:
        counts = {label: self.counts[label] for label in _ACTIONS}
        self.out.record({"event": "start", **counts, "manifest": self.batch.manifest_path})
        return self

    def result(self, result: Result) -> None:
        self.progress.take(result)
        event: dict[str, Any] = {"event": "caption" if result.ok else "failed", "file": result.path}
        if result.answer is not None:
            event |= {"sidecar": result.sidecar, "prompt": result.prompt}
            event |= {**result.answer.to_dict(), "text": result.caption}
        elif result.error is not None:
            event["error"] = result.error.to_dict()
        self.out.record(event)

    def end(self) -> int:
        for path, error in self.batch.failed_before:
            self.out.record({"event": "failed", "file": path, "before": True, "error": error})
        self.out.record({"event": "end", **self.progress.figures()})
        return self.progress.failed + len(self.batch.failed_before)


_ACTIONS = ("caption", "done", "existing", "failed", "changed", "edited")


# ---- figures as words


def _pictures(n: int) -> str:
    return "1 picture" if n == 1 else f"{n} pictures"


def figures_line(figures: dict[str, Any]) -> str:
    """One line of where a batch stands."""
    n = figures["captioned"] + figures["failed"]
    parts = [f"{n}/{n + figures['left']}"]
    if figures["failed"]:
        parts.append(f"{figures['failed']} failed")
    parts.append(speed(figures))
    if figures["eta_s"] is not None:
        parts.append(f"{duration(figures['eta_s'])} left")
    parts.append(_mebibytes(figures["rss_bytes"]))
    return ", ".join(parts)


def speed(figures: dict[str, Any]) -> str:
    return f"{figures['images_per_s']:.3g} images/s, {figures['tokens_per_s']:.3g} tokens/s"


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def _mebibytes(value: int | None) -> str:
    return "-" if value is None else f"{value / 2**20:.0f} MiB"


def _reason(path: str, message: str) -> str:
    """The message without the name that stands beside it."""
    return message.removeprefix(path).removeprefix(":").strip()


# ---- dry run


def dry_run(batch: Batch, out: Output) -> int:
    """List what would happen; returns the exit code."""
    from ecokv_local.caption.estimate import estimates, seconds_per_image

    found: dict[str, Estimate] = {}
    if batch.plan.to_do:
        with batch.engine() as engine:
            for estimate in estimates(batch, engine):
                found[estimate.path] = estimate
    lap = seconds_per_image(batch)
    if out.as_json:
        _dry_events(batch, out, found, lap)
    else:
        _dry_table(batch, out, found, lap)
    return SOME_FAILED if any(e.error is not None for e in found.values()) else OK


_WORDS = {
    "caption": "caption",
    "done": "done before",
    "existing": "has a caption",
    "failed": "failed before",
    "changed": "made otherwise",
    "edited": "edited, kept",
}


def _dry_table(batch: Batch, out: Output, found: dict[str, Estimate], lap: float | None) -> None:
    rows = []
    for item in batch.plan.items:
        estimate = found.get(item.path)
        if estimate is None or estimate.error is not None:
            cells = ["", "", ""]
        else:
            size = f"{estimate.kv_bytes / 2**10:.0f} KiB"
            cells = [str(estimate.n_prompt), str(estimate.n_image_tokens), size]
        failing = estimate is not None and estimate.error is not None
        rows.append((item.path, "would fail" if failing else _WORDS[item.action], *cells))
    header = ("file", "what", "tokens", "of the picture", "KV memory")
    tables.show("what would happen", header, rows, text_columns=2)
    good = [e for e in found.values() if e.error is None]
    total = sum(e.n_prompt for e in good)
    time_needed = "unknown" if lap is None else f"about {duration(lap * len(good))}"
    print(f"{_pictures(len(good))} to caption, {total} tokens to read, time {time_needed}")
    for estimate in found.values():
        if estimate.error is not None:
            print(visible(f"would fail: {estimate.error.message}"))
    for what, n in batch.plan.changes.items():
        print(visible(f"made otherwise: {what} ({n} files)"))


def _dry_events(batch: Batch, out: Output, found: dict[str, Estimate], lap: float | None) -> None:
    for item in batch.plan.items:
        event: dict[str, Any] = {"event": "plan", "file": item.path, "action": item.action}
        estimate = found.get(item.path)
        if estimate is not None and estimate.error is not None:
            event["error"] = estimate.error.to_dict()
        elif estimate is not None:
            names = ("n_prompt", "n_image_tokens", "n_kept", "kv_bytes")
            event |= {name: getattr(estimate, name) for name in names}
        out.record(event)
    out.record({"event": "end", "seconds_per_image": lap, "changes": dict(batch.plan.changes)})
