"""The batch: every picture is captioned once, whatever happens in between."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Union

from ecokv_local.caption.config import CaptionConfig, settings_id, settings_values
from ecokv_local.caption.inputs import Source
from ecokv_local.caption.manifest import Manifest, Names, State, read
from ecokv_local.caption.outputs import Outputs, recover, relative_plan
from ecokv_local.caption.plan import Item, Plan, content_hash, items_of, make_plan, stat_of
from ecokv_local.caption.prompts import Prompts, Texts, variables_of
from ecokv_local.caption.results import (
    ChangedError,
    Result,
    Work,
    changed_meanwhile,
    check_place,
    disk_error,
    manifest_path,
    not_writable,
)
from ecokv_local.caption.writing import is_disk_failure
from ecokv_local.errors import EcokvError, ModelError, StateError, UsageError

if TYPE_CHECKING:
    from ecokv_local.answer import Answer
    from ecokv_local.engine import Engine
    from ecokv_local.parallel import Request

    EngineSource = Union[Engine, Callable[[], Engine]]  # noqa: UP007 - evaluated on Python 3.10


class Batch:
    """A batch that is planned and not yet run; no model is loaded. A context manager.

    ``engine`` is a loaded one, or a function that loads it when the first picture needs it (that
    one is closed at the end). ``model`` are the values that name the model in the manifest, see
    ``model_values``. ``scope`` tells this batch from others over the same manifest. ``dry`` only
    looks: nothing is locked, completed or written, and it cannot be run.

    Raises UsageError for names that collide, files of another kind, a manifest in use.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        config: CaptionConfig,
        prompts: Prompts,
        *,
        engine: EngineSource,
        model: dict[str, Any],
        scope: Sequence[str] = (),
        dry: bool = False,
    ) -> None:
        self.config, self.prompts = config, prompts
        self.warnings: list[str] = []
        self.on_start: Callable[[], None] = lambda: None  # called when the model is there
        self._engine = engine
        self._stop = False
        self._n_written = 0
        self._answers: Generator[Result, None, None] | None = None
        self._refused: deque[tuple[Item, EcokvError]] = deque()  # before they reached the model
        self._texts = Texts(
            [("the prompt", text) for text in prompts.texts]
            + [("--prepend", config.prepend), ("--append", config.append)]
        )
        self.manifest_path = path = os.path.abspath(manifest_path(config, sources))
        folder = os.path.dirname(path)
        items = items_of(sources, Names(folder), config, self.warnings)
        self._outputs = Outputs(config.outputs, mode=config.existing)
        self._values = settings_values(config, prompts.values(), model)
        self.settings = settings_id(self._values)
        self._job = settings_id(
            {"scope": list(scope), "settings": self.settings, "mode": config.existing}
        )
        self._opened = Manifest(path) if items and not dry else None
        self._clock = time.perf_counter()
        try:
            self.state = read(path) if self._opened is None else self._recovered(self._opened)
            self.plan: Plan = make_plan(
                items, config, self.state, self._outputs, self._values, self._job
            )
        except BaseException:
            self.close()
            raise
        if self.plan.changes and config.changed == "redo":
            self.plan.redo_changed()
        self.failed_before = [
            (item.path, dict(item.entry["error"]))
            for item in self.plan.items
            if item.action == "failed" and item.entry is not None
        ]

    @property
    def _manifest(self) -> Manifest:
        if self._opened is None:
            raise StateError("this batch only looks", hint="make another without dry")
        return self._opened

    def _recovered(self, manifest: Manifest) -> State:
        """What a killed run left is completed, before anything is decided."""
        try:
            self.warnings += recover(manifest, self._outputs)
            self._outputs.load()
        except OSError as error:
            raise disk_error(error) from error
        return manifest.state

    # ---- running

    def stop(self) -> None:
        """Begin no other picture; those in work are finished. Safe from a signal handler."""
        self._stop = True

    @property
    def stopped(self) -> bool:
        """Whether ``stop`` was called."""
        return self._stop

    def run(self) -> Iterator[Result]:
        """Caption what there is to do. A result for each picture, in the order they are finished.

        Raises:
            ChangedError: captions were made otherwise and ``changed`` is "ask".
            EcokvError: the model cannot be loaded, or nothing more can be written.
        """
        self.require_decision()
        to_do = self.plan.to_do
        self._note_touched()
        if not to_do:
            return
        self._begin()
        self._answers = self._run(to_do)
        try:
            yield from self._answers
        except OSError as error:
            raise disk_error(error) from error
        finally:
            self._outputs.close()

    def require_decision(self) -> None:
        """Raises ChangedError if captions were made otherwise, and nobody said what to do."""
        if self.plan.changes and self.config.changed == "ask":
            raise ChangedError(dict(self.plan.changes))

    def _run(self, to_do: list[Item]) -> Generator[Result, None, None]:
        from ecokv_local.parallel import auto_parallel, generate

        config = self.config
        with self.engine() as engine:
            n = config.parallel
            if n == "auto":
                n = auto_parallel(engine, len(to_do))
            self._lap()
            self.on_start()
            answers: Any = generate(
                engine,
                self._requests(to_do),
                parallel=n,
                system=config.system,
                eviction=config.eviction,
                sampling=config.sampling,
                n_ctx=config.n_ctx,
            )
            with closing(answers):
                for request, answer in answers:
                    yield from self._drained()
                    result = self._take(request.key, answer)
                    if result is not None:
                        yield result
            yield from self._drained()
        if any(item.again for item in to_do) or config.existing != "skip":
            self._outputs.compact()
        if not self._stop:
            self._manifest.add({"status": "end", "job": self._job, "at": int(time.time())})

    @contextmanager
    def engine(self) -> Iterator[Engine]:
        """The model, loaded if it is not yet. Raises UsageError for one that sees nothing."""
        engine = self._engine() if callable(self._engine) else self._engine
        try:
            self._check(engine)
            yield engine
        finally:
            if engine is not self._engine:
                engine.close()

    def _check(self, engine: Engine) -> None:
        if not engine.has_vision:
            raise UsageError(
                f"{engine.model_path}: has no projector, it cannot see pictures",
                hint="give the model's mmproj file with --mmproj",
            )
        if self.config.grammar is not None:
            from ecokv_local.sampling import check_grammar

            check_grammar(engine._model(), self.config.grammar)

    def _requests(self, to_do: list[Item]) -> Iterator[Request]:
        """What the model is asked, one picture at a time, as it gets free."""
        from ecokv_local.images import MAX_PIXELS, ImageInput
        from ecokv_local.parallel import Request

        config = self.config
        for item in to_do:
            if self._stop:
                return
            try:
                work = self._prepare(item)
            except EcokvError as error:
                self._refused.append((item, error))  # booked by whoever reads the results
                continue
            image = ImageInput(
                item.path,
                item.path,
                max_pixels=config.max_pixels or MAX_PIXELS,
                allow_truncated=config.allow_truncated,
                frame=config.frame,
            )
            yield Request(work, work.prompt, (image,), config.max_tokens, config.grammar)

    def _prepare(self, item: Item) -> Work:
        """What has to be known of a picture before it is decoded. Raises EcokvError."""
        from ecokv_local.images import probe_image

        config, texts = self.config, self._texts
        item.stat = stat_of(item.path)  # hours may have passed
        if item.sidecar is not None:
            check_place(item.sidecar)
        sha256 = content_hash(item.path) if item.stat is not None else ""
        header = probe_image(item.path) if texts.needs_header else None
        known = self._known_of(item, header)
        return Work(
            item,
            self.prompt_of(item, header),
            texts.render(config.prepend, known),
            texts.render(config.append, known),
            sha256,
        )

    def prompt_of(self, item: Item, header: Mapping[str, Any] | None = None) -> str:
        """What is asked about a picture; ``header`` is ``images.probe_image``, where a template
        needs it. Raises UsageError where a template fails on it.
        """
        if item.source.prompt is not None:
            return item.source.prompt
        text = self.prompts.choose(item.key)
        prompt = self._texts.render(text, self._known_of(item, header))
        if not prompt.strip():
            raise UsageError(f"{item.path}: its prompt came out empty", hint="check the template")
        return prompt

    @staticmethod
    def _known_of(item: Item, header: Mapping[str, Any] | None) -> dict[str, Any]:
        return variables_of(item.path, item.stat[0] if item.stat else 0, header)

    def _drained(self) -> Iterator[Result]:
        while self._refused:
            yield self._fail(*self._refused.popleft())

    # ---- results

    def _take(self, work: Work, answer: Answer | EcokvError) -> Result | None:
        """Book what came back for a picture; None if it was dropped."""
        item = work.item
        if isinstance(answer, ModelError) and not self._n_written:
            raise answer  # it will not do better with the next picture
        if isinstance(answer, EcokvError):
            return self._fail(item, answer)
        if answer.finish_reason == "cancelled":
            return None
        problem = self._problem(item, answer)
        if problem is not None:
            return self._fail(item, problem)
        return self._write(work, answer, f"{work.head}{answer.text.strip()}{work.tail}")

    def _problem(self, item: Item, answer: Answer) -> EcokvError | None:
        """Why an answer is no caption."""
        if answer.finish_reason == "length" and self.config.grammar is not None:
            return EcokvError(
                f"{item.path}: the answer was cut off before the grammar was complete",
                hint="raise -n or --ctx-size, or allow less in the schema",
            )
        if not answer.text.strip():
            return EcokvError(f"{item.path}: the model said nothing", hint="try another prompt")
        return changed_meanwhile(item)

    def _write(self, work: Work, answer: Answer, caption: str) -> Result:
        """In the order that `manifest` explains. Raises OSError if the disk is full."""
        item, manifest = work.item, self._manifest
        number = manifest.next_number()
        record = {**answer.to_dict(), "text": caption}
        done = self._entry(item) | {"sha256": work.sha256, "seconds": self._lap()}
        try:
            write = self._outputs.describe(
                item.path, item.sidecar, caption, work.prompt, record, again=item.again
            )
            if "sidecar" in write:
                done["sidecar_sha256"] = write["sidecar"]["after"]
            made = {"status": "made", "n": number, "file": item.key}
            manifest.add(made | {"write": relative_plan(write, manifest), "done": done})
            self._outputs.write(write)
        except OSError as error:
            if is_disk_failure(error):
                raise
            return self._fail(item, not_writable(error, item.path), number)
        manifest.add({"status": "done", "n": number, "file": item.key, **done}, durable=False)
        self._n_written += 1
        return Result(item.path, caption, work.prompt, item.sidecar, answer)

    def _lap(self) -> float:
        """Seconds since the last caption: their sum is what all took, in parallel or not."""
        before, self._clock = self._clock, time.perf_counter()
        return round(self._clock - before, 3)

    def _entry(self, item: Item) -> dict[str, Any]:
        """What a line of the manifest says of a picture."""
        size, mtime_ns = item.stat if item.stat is not None else (None, None)
        entry = {"size": size, "mtime_ns": mtime_ns, "settings": self.settings, "job": self._job}
        return entry if item.source.prompt is None else entry | {"prompt": item.source.prompt}

    def _fail(self, item: Item, error: EcokvError, number: int | None = None) -> Result:
        entry = {"status": "failed", "file": item.key, **self._entry(item)}
        entry["limits"] = self.config.limits
        if item.again:  # the caption that was to be replaced is still there
            entry["again"] = True
            entry["sidecar_sha256"] = (item.entry or {}).get("sidecar_sha256")
        if number is not None:
            entry["n"] = number
        self._manifest.add(entry | {"error": error.to_dict()})
        return Result(item.path, sidecar=item.sidecar, error=error)

    # ---- the manifest

    def _begin(self) -> None:
        manifest = self._manifest
        try:
            if self.settings not in self.state.settings:
                entry = {"status": "settings", "id": self.settings, "values": self._values}
                manifest.add(entry)
            manifest.add({"status": "begin", "job": self._job, "at": int(time.time())})
            self._outputs.prepare()
        except OSError as error:
            raise disk_error(error) from error

    def _note_touched(self) -> None:
        """Pictures that were copied: their new times, so that they are not hashed each time."""
        for item in self.plan.touched:
            if item.entry is not None and item.stat is not None:
                size, mtime_ns = item.stat
                entry = item.entry | {"size": size, "mtime_ns": mtime_ns}
                self._manifest.add(entry, durable=False)

    def close(self) -> None:
        """End what is running and let others have the manifest; idempotent."""
        if self._answers is not None:
            self._answers.close()
        self._outputs.close()
        if self._opened is not None:
            self._opened.close()

    def __enter__(self) -> Batch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
