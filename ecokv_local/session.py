"""One conversation on an engine: what was said, what of it is in the cache, and turns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ecokv_local.answer import Answer, Event
from ecokv_local.budget import Budget
from ecokv_local.config import EvictionConfig, SamplingConfig
from ecokv_local.errors import ImageError, StateError, UsageError
from ecokv_local.fork import copy_rows
from ecokv_local.groups import Texts
from ecokv_local.images import ImageInput
from ecokv_local.messages import Message
from ecokv_local.prompt import MEDIA_MARKER, neutralise
from ecokv_local.turn import Turn
from ecokv_local.window import Read, moved, with_system

if TYPE_CHECKING:
    from ecokv_local.context import Context, EvictionResult
    from ecokv_local.engine import Engine
    from ecokv_local.prompt import RenderedPrompt
    from ecokv_local.sampling import Sampler


_CANNOT_REWIND = "the cache cannot go back to where the last turn began"


class Session:
    """A conversation with its own cache.

    Three numbers are kept apart: ``n_position`` is where the next token stands in the text,
    ``n_rows`` counts KV pairs held per layer and KV head, ``n_cells`` is the most there may be.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        system: str | None,
        eviction: EvictionConfig,
        sampling: SamplingConfig,
        n_ctx: int | None,
    ) -> None:
        check_text("the system prompt", system or "")
        self.engine = engine
        self.messages: list[Message] = []
        self.opening: tuple[Message, ...] = ()  # documents that begin the first message
        self.system, self.eviction, self.sampling = system, eviction, sampling
        self._template = engine.chat_template()
        small = eviction.enabled and eviction.shrink
        self._context: Context | None = engine.context(n_ctx, n_first=1 if small else None)
        self._sampler: Sampler | None = None
        self._read = Read()
        self._before_last = Read()  # as it was before the last turn
        self._stop = False
        self._running = False
        self._seeing = False
        self._n_evictions = 0
        asked = n_ctx or engine.n_ctx
        self._notes: list[str] = []  # for the next turn's warnings
        if asked and self._context.n_cells != asked:
            self._notes.append(f"ctx-size {asked} was rounded up to {self._context.n_cells} cells")
        try:
            self._enable(eviction.window)
        except BaseException:
            self.close()
            raise

    # ---- state

    @property
    def context(self) -> Context:
        """The native context. Raises StateError after ``close``."""
        if self._context is None:
            raise StateError("the session is closed")
        return self._context

    @property
    def n_position(self) -> int:
        """The true position of the next token."""
        return self.context.n_position

    @property
    def n_rows(self) -> int:
        """KV pairs held per layer and KV head."""
        return self.context.n_rows

    @property
    def n_cells(self) -> int:
        """Cells that the cache may grow to; ``stats`` tells how many there are."""
        return self.context.n_cells

    @property
    def stopping(self) -> bool:
        """Whether ``stop`` was called during this turn."""
        return self._stop

    def _enable(self, window: int) -> None:
        """Eviction on or off as the settings say; ``window`` is the one that was in force."""
        context = self.context
        if self.eviction.enabled and (not context.enabled or window != self.eviction.window):
            if not context.enabled:  # no query of what was read could vote
                self._forget("the cache kept no queries to choose by")
            context.enable(self.eviction.window)
        elif not self.eviction.enabled and context.enabled:
            self.engine.check_fits(context.params.n_cells)  # all of them from now on
            if context.lossy:  # nothing will guard the evicted rows any more
                self._forget("what was evicted before is needed without a budget")
            context.disable()

    def _forget(self, reason: str = "") -> None:
        """Empty the cache: the next turn reads the whole conversation, and says why."""
        if reason and self._read.text:
            self._notes.append(f"the conversation was read again: {reason}")
        self.context.clear()
        self._read = self._before_last = Read()

    def configure(
        self,
        *,
        eviction: EvictionConfig | None = None,
        sampling: SamplingConfig | None = None,
        system: str | None = None,
    ) -> None:
        """Change settings between turns; an empty ``system`` removes the system prompt."""
        self._idle()
        if eviction is not None:
            before, self.eviction = self.eviction, eviction
            try:
                self._enable(before.window)
            except BaseException:
                self.eviction = before
                raise
        if sampling is not None:
            self.sampling = sampling
            self._close_sampler()
        if system is not None:
            check_text("the system prompt", system)
            self.system = system or None

    def _idle(self) -> None:
        if self._running:
            raise StateError("a turn is running", hint="stop it first")
        self.context  # noqa: B018 - raises if closed

    # ---- turns

    def ask(
        self, text: str, images: Sequence[Any] = (), *, max_tokens: int | None = None
    ) -> Iterator[Event]:
        """Say ``text`` with ``images`` (paths, bytes or Pillow images) and stream the answer.

        A turn that fails raises and leaves the conversation as it was; ``stop``, or closing the
        iterator, ends the answer and keeps the turn.
        """
        self._begin(max_tokens)
        return self._run(self._next(user_message(self.engine, text, images)), max_tokens)

    def _next(self, message: Message) -> list[Message]:
        """What is said next: the message, the first one behind the documents that were read."""
        if not self.opening or self.messages:
            return [message]
        from ecokv_local.opening import join

        return join(self.opening[0], message)

    def read(self, text: str, images: Sequence[Any] = ()) -> Iterator[Event]:
        """Read documents ahead, down to the budget: what is asked later goes on behind them.

        Raises StateError, with the first event, if something was said already.
        """
        from ecokv_local.opening import read

        self._begin(None)
        return read(self, user_message(self.engine, text.strip(), images))

    def save(self, path: str | Path) -> int:
        """Write a file that ``Engine.load_session`` goes on from; returns its size in bytes.

        Raises EcokvError if the disk is full (an old file is as it was then), and ModelError if
        this kind of memory cannot be saved.
        """
        from ecokv_local.saving import save

        self._idle()
        return save(self, path)

    def answer(
        self, text: str, images: Sequence[Any] = (), *, max_tokens: int | None = None
    ) -> Answer:
        """``ask``, to the end."""
        return _last(self.ask(text, images, max_tokens=max_tokens))

    def regenerate(self, *, max_tokens: int | None = None) -> Iterator[Event]:
        """Answer the last message anew."""
        self._begin(max_tokens)
        self._has_answer()
        return self._again(max_tokens)

    def _begin(self, max_tokens: int | None) -> None:
        self._idle()
        check_max_tokens(max_tokens)
        self._stop = False  # a stop from here on counts, also before the first event
        self.context.request_stop(False)

    def _has_answer(self) -> None:
        if len(self.messages) < 2:
            raise StateError("there is no answer to make again", hint="ask something first")

    def _again(self, max_tokens: int | None) -> Iterator[Event]:
        self._idle()
        self._has_answer()
        kept, read = list(self.messages), self._read
        message = self.messages[-2]
        del self.messages[-2:]
        if self.context.rollback(self._before_last.end):
            self._read = self._before_last
        else:
            self._forget(_CANNOT_REWIND)
        try:
            yield from self._run([message], max_tokens)
        except GeneratorExit:  # closed: the turn was kept
            raise
        except BaseException:
            self.messages = kept
            if self._read != read and self._context is not None:
                self._forget("the answer before it could not be made again")
            raise

    def _run(self, said: list[Message], max_tokens: int | None) -> Iterator[Event]:
        self._idle()
        self._running = True
        try:
            yield from self._turn(said, max_tokens)
        finally:
            self._running = False

    def _turn(self, said: list[Message], max_tokens: int | None) -> Iterator[Event]:
        """``said`` is what is added to the conversation, a question last."""
        conversation = [*self.messages, *said]
        self.see(any(m.images for m in conversation))
        rendered = self.render(conversation)
        if not rendered.text.startswith(self._read.text):
            whole = self._read.first == 0
            self._forget("its earlier part does not begin the new prompt")
            rendered = rendered if whole else self.render(conversation)
        before = self._read
        images = [image for m in conversation[before.first :] for image in m.images]
        notes, self._notes = self._notes, []
        again = before.end.n_position == 0 and len(conversation) > 1
        turn = Turn(self, max_tokens, [*notes, *rendered.warnings], again=again)
        try:
            texts = texts_of(self.system, said[-1], self.opening)
            new = rendered.text[len(before.text) :]
            yield from turn.run(new, images[before.n_images :], texts)
        except GeneratorExit:
            if self._context is not None:
                self._keep(turn, conversation, rendered.text, len(images), before)
            raise
        except BaseException:
            self._notes = notes  # nobody has seen them
            self._n_evictions += turn.n_evictions
            if self._context is not None:
                self._undo(before)
            raise
        answer = self._keep(turn, conversation, rendered.text, len(images), before)
        yield Event("end", "", answer)

    def render(
        self, conversation: list[Message], *, add_generation_prompt: bool = True
    ) -> RenderedPrompt:
        """The part of a conversation that is compared with what was read, as text."""
        window = conversation[self._read.first :]
        return self._template.render(
            with_system(self.system, window), add_generation_prompt=add_generation_prompt
        )

    def see(self, seeing: bool) -> None:
        """The adapters of a conversation with (or without) images; read anew where they differ."""
        adapters = self.engine.adapters(seeing=seeing)
        if adapters != self.engine.adapters(seeing=self._seeing):
            self._forget("the model sees images through an adapter of its own")
            self.context.set_adapters(adapters)
        self._seeing = seeing

    def _keep(
        self, turn: Turn, conversation: list[Message], prompt: str, n_images: int, before: Read
    ) -> Answer:
        """Book a turn that ended or was stopped."""
        self.messages = [*conversation, Message("assistant", turn.text)]
        if turn.prompt_read:
            context = self.context
            text = prompt + turn.text_read
            self._before_last = before
            read = Read(text, n_images, context.mark(), before.first)
            self._read = moved(self._template, self.system, conversation, prompt, read)
        else:
            self._undo(before)  # stopped while reading: the next turn reads it whole
        self._n_evictions += turn.n_evictions
        return turn.record()

    def _undo(self, before: Read) -> None:
        if self.context.rollback(before.end):
            self._read = before
        else:
            self._forget(_CANNOT_REWIND)

    # ---- what files and documents need

    @property
    def seeing(self) -> bool:
        """Whether the adapters of a conversation with images are on."""
        return self._seeing

    @property
    def reads(self) -> tuple[Read, Read]:
        """What the cache has read, now and before the last turn."""
        return self._read, self._before_last

    def opened(self, message: Message, text: str, n_evictions: int) -> None:
        """Book documents that were read as ``text``."""
        self.opening = (message,)
        self._read, self._before_last = Read(text, len(message.images), self.context.mark()), Read()
        self._n_evictions += n_evictions

    def resume(
        self,
        messages: list[Message],
        opening: list[Message],
        reads: tuple[Read, Read],
        *,
        seeing: bool,
        n_evictions: int,
    ) -> None:
        """Book a conversation whose rows were put into the cache."""
        self.context.set_adapters(self.engine.adapters(seeing=seeing))
        if self.eviction.enabled and self.eviction.shrink:
            self.context.shrink(self.eviction.slack + 1)
        self.messages, self.opening = messages, tuple(opening)
        self._read, self._before_last = reads
        self._seeing, self._n_evictions = seeing, n_evictions

    def sampler(self) -> Sampler:
        """The sampler of this session, made with the first token."""
        if self._sampler is None:
            from ecokv_local.sampling import Sampler

            self._sampler = Sampler(self.sampling)
        return self._sampler

    def stop(self) -> None:
        """End the running answer at the next token or micro-batch. Safe from a signal handler."""
        self._stop = True
        if self._context is not None:
            self._context.request_stop()

    def clear(self) -> None:
        """Forget the conversation."""
        self._idle()
        self.messages.clear()
        self.opening = ()
        self._forget()

    def fork(self, *, eviction: EvictionConfig | None = None) -> Session:
        """A conversation of its own that goes on from here, with a copy of the cache.

        So one document is read once and asked many things, each within a budget of its own:
        ``eviction``, or that of this session. Raises StateError where anything was evicted.
        """
        self._idle()
        other = self.engine.session(
            system=self.system,
            eviction=eviction or self.eviction,
            sampling=self.sampling,
            n_ctx=self.context.params.n_cells,
        )
        try:
            other.see(self._seeing)
            copy_rows(self.context, other.context)
        except BaseException:
            other.close()
            raise
        other.messages, other.opening = list(self.messages), self.opening
        other._read, other._before_last = self._read, self._before_last
        return other

    def evict(self, budget: Budget | str | int | None = None) -> EvictionResult:
        """Evict now, to ``budget`` or the session's own."""
        self._idle()
        config = self.eviction if budget is None else replace(self.eviction, budget=budget)
        if not config.enabled:
            raise StateError("there is no budget to evict to", hint="give one: evict(512)")
        if not self.context.enabled:
            raise StateError(
                "this session keeps no queries to choose by", hint="open it with a budget"
            )
        pairs = config.pairs(self.context.n_tokens, max(1, self.context.bytes_per_row()))
        result = self.context.evict(config, pairs)
        self._n_evictions += result.evicted
        return result

    def stats(self) -> dict[str, Any]:
        """Numbers of the cache as they are now, measured."""
        context = self.context
        per_row = context.bytes_per_row()
        return {
            "n_position": self.n_position,
            "n_rows": self.n_rows,
            "n_cells": self.n_cells,
            "n_cells_allocated": context.n_allocated,
            "flash_attn": "on" if context.flash_attn else "off",
            "cache_types": f"{self.engine.cache_type_k}/{self.engine.cache_type_v}",
            "kv_bytes": per_row * self.n_rows - context.hole_bytes(),
            "kv_bytes_holes": context.hole_bytes(),
            "kv_bytes_allocated": context.kv_bytes() if per_row else 0,
            "n_evictions": self._n_evictions,
            "budget": str(self.eviction.budget) if self.eviction.enabled else None,
            "policy": self.eviction.policy if self.eviction.enabled else "none",
            "layers": context.counters(),
        }

    def _close_sampler(self) -> None:
        if self._sampler is not None:
            self._sampler.close()
            self._sampler = None

    def close(self) -> None:
        """Free the cache; idempotent."""
        self._close_sampler()
        if self._context is not None:
            self._context.close()
            self._context = None


def user_message(engine: Engine, text: str, images: Sequence[Any]) -> Message:
    """What a user says. Raises UsageError for text that is none and ImageError for images that the
    engine cannot take.
    """
    check_text("the prompt", text)
    message = Message("user", text, tuple(ImageInput.of(image) for image in images))
    if message.images and not engine.has_vision:
        raise ImageError(
            f"{message.images[0].name}: this model has no projector, it cannot see images",
            hint="give the model's mmproj file with --mmproj",
        )
    return message


def check_max_tokens(max_tokens: int | None) -> None:
    """Raises UsageError below zero."""
    if max_tokens is not None and max_tokens < 0:
        raise UsageError(f"max_tokens {max_tokens}: a number from 0 on is needed")


def check_text(what: str, text: str) -> None:
    """Raises UsageError for text that cannot be encoded."""
    try:
        text.encode()
    except (
        UnicodeEncodeError
    ) as error:  # a lone surrogate, such as from arguments that are no UTF-8
        raise UsageError(
            f"{what} holds {text[error.start]!r} at {error.start}, which is not a character",
            hint="give the text in UTF-8",
        ) from None


def texts_of(system: str | None, message: Message, opening: Sequence[Message] = ()) -> Texts:
    """The texts of a prompt that can be protected, as they are rendered; documents that begin the
    message are no part of the question.
    """
    question = message.text
    for documents in opening:
        question = question.removeprefix(f"{documents.text}\n\n")
    return Texts(neutralise(system or "").strip(), neutralise(question).strip())


def _last(events: Iterator[Event]) -> Answer:
    for event in events:
        if event.answer is not None:
            return event.answer
    raise StateError("the turn ended without an answer")


__all__ = ["MEDIA_MARKER", "Read", "Session"]
