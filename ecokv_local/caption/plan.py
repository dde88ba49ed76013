"""What is to be done with every picture, decided from names, sizes and times: nothing is decoded,
no model is loaded.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ecokv_local.caption.config import CaptionConfig, differences, settings_id
from ecokv_local.caption.inputs import Source
from ecokv_local.caption.manifest import State
from ecokv_local.caption.names import captions_among, check_collisions, sidecar_of
from ecokv_local.caption.outputs import Outputs
from ecokv_local.caption.writing import digest, read_if_there

#: ``caption``: to do. ``done``: by an earlier run. ``existing``: a caption is there that no run of
#: this manifest made. ``failed``: by an earlier run, and nothing has changed since. ``changed``:
#: done with other settings, or of another picture. ``edited``: changed, and its caption edited.
Action = Literal["caption", "done", "existing", "failed", "changed", "edited"]


@dataclass
class Item:
    """A picture and what happens to it. ``again``: a caption that is there is made anew."""

    source: Source
    key: str
    sidecar: str | None
    action: Action = "caption"
    again: bool = False
    entry: dict[str, Any] | None = None
    stat: tuple[int, int] | None = None  # size and time of change in ns; None: not there

    @property
    def path(self) -> str:
        """The picture."""
        return self.source.path


@dataclass
class Plan:
    """The items of a batch in their order, and what has changed since the captions were made:
    in words, with the number of pictures. ``touched`` are copies: same content, another time.
    """

    items: list[Item]
    changes: Counter[str] = field(default_factory=Counter)
    touched: list[Item] = field(default_factory=list)

    @property
    def to_do(self) -> list[Item]:
        """Items that need the model."""
        return [item for item in self.items if item.action == "caption"]

    def counts(self) -> Counter[str]:
        """Items by action."""
        return Counter(item.action for item in self.items)

    def redo_changed(self) -> None:
        """Have the changed ones made again, except where somebody edited the caption."""
        for item in self.items:
            if item.action == "changed":
                _redo(item)
        self.changes.clear()


def items_of(
    sources: Sequence[Source], key: Callable[[str], str], config: CaptionConfig, warnings: list[str]
) -> list[Item]:
    """An item for each picture; ``key`` names it in the manifest. Raises UsageError for names that
    collide.
    """
    if not config.sidecars:
        return [Item(source, key(source.path), None) for source in sources]
    full = config.full_names
    captions, alike = captions_among([s.path for s in sources], config.extension, full=full)
    for path in sorted(alike):
        warnings.append(f"{path}: ends like a caption ({config.extension}), it is left out")
    left = captions | alike
    sources = [source for source in sources if source.path not in left]
    sidecars = [sidecar_of(source.path, config.extension, full=full) for source in sources]
    check_collisions([source.path for source in sources], sidecars, full=full)
    pairs = zip(sources, sidecars, strict=True)
    return [Item(source, key(source.path), sidecar) for source, sidecar in pairs]


def make_plan(
    items: list[Item],
    config: CaptionConfig,
    state: State,
    outputs: Outputs,
    values: dict[str, Any],
    job: str,
) -> Plan:
    """Decide about every item. ``values`` are the settings now, ``job`` names this batch: what it
    had done before it was interrupted is not done again.
    """
    plan = Plan(items)
    now = settings_id(values)
    finished = state.open_jobs.get(job, set())
    words: dict[str, list[str]] = {}
    for item in items:
        item.entry, item.stat = state.files.get(item.key), stat_of(item.path)
        present = _present(item, outputs)
        entry = item.entry or {}
        done = entry.get("status") == "done"
        if config.existing == "skip" and present and not entry.get("again"):
            item.action = "done" if done else "existing"
            if item.entry is not None and done:
                changes = _changes(item, item.entry, now, state, values, words, plan)
                if changes:
                    item.action = "changed"
                    plan.changes.update(changes)
        elif done and present and item.key in finished:
            item.action = "done"
        elif not done and not config.retry_failed and _failed_as_now(item, now, config.limits):
            item.action = "failed"
        elif entry.get("again") and present:  # was to be made again, and failed
            _redo(item)
    return plan


def stat_of(path: str) -> tuple[int, int] | None:
    """Size and time of change in ns; None if there is no such file."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_size, status.st_mtime_ns


def _present(item: Item, outputs: Outputs) -> bool:
    """Whether a caption is everywhere where one belongs."""
    if item.sidecar is not None and not os.path.exists(item.sidecar):
        return False
    return all(rows.name(item.path) in rows.names for rows in outputs.rows)


def _failed_as_now(item: Item, settings: str, limits: list[Any]) -> bool:
    """Whether an earlier run failed on the same picture with the same settings."""
    entry = item.entry
    if entry is None or entry["settings"] != settings or entry.get("limits") != limits:
        return False
    seen = None if entry.get("mtime_ns") is None else (entry["size"], entry["mtime_ns"])
    return seen == item.stat and entry.get("prompt") == item.source.prompt


def _changes(
    item: Item,
    entry: dict[str, Any],
    now: str,
    state: State,
    values: dict[str, Any],
    words: dict[str, list[str]],
    plan: Plan,
) -> list[str]:
    """What differs from when the caption was made, in words."""
    changes: list[str] = []
    if entry["settings"] != now:
        before = entry["settings"]
        if before not in words:
            words[before] = differences(state.settings.get(before, {}), values)
        changes += words[before]
    if entry.get("prompt") != item.source.prompt:
        changes.append("prompt of the picture")
    if item.stat is not None and (entry["size"], entry["mtime_ns"]) != item.stat:
        if item.stat[0] == entry["size"] and content_hash(item.path) == entry["sha256"]:
            plan.touched.append(item)
        else:
            changes.append("content of the picture")
    return changes


def _redo(item: Item) -> None:
    item.action = "edited" if _edited(item) else "caption"
    item.again = item.action == "caption"


def _edited(item: Item) -> bool:
    """Whether the sidecar is not what was written."""
    if item.sidecar is None or item.entry is None or not item.entry.get("sidecar_sha256"):
        return False
    data = read_if_there(item.sidecar)
    return data is not None and digest(data) != item.entry["sidecar_sha256"]


def content_hash(path: str) -> str:
    """Hex SHA-256 of a file, read in parts; "" if it cannot be read."""
    value = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while part := file.read(1 << 20):
                value.update(part)
    except OSError:
        return ""
    return value.hexdigest()
