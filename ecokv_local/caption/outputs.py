"""Where captions go: sidecars and rows. Every write is described first, so that it can be
completed after the process was killed, by looking at what is there.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from ecokv_local.caption.manifest import Manifest
from ecokv_local.caption.rows import Rows
from ecokv_local.caption.writing import (
    digest,
    read_if_there,
    remove_unfinished,
    replace_file,
)

_BOM = b"\xef\xbb\xbf"


def sidecar_bytes(caption: str, mode: str, old: bytes | None) -> bytes:
    """Content of a sidecar: ``caption`` and a line end; with ``append`` or ``prepend`` after or
    before what was there.
    """
    new = caption.encode() + b"\n"
    if not old or mode not in ("append", "prepend"):
        return new
    if mode == "append":
        return old + (b"" if old.endswith(b"\n") else b"\n") + new
    bom = _BOM if old.startswith(_BOM) else b""
    return bom + new + old[len(bom) :]


class Outputs:
    """The sidecars and row files of a batch."""

    def __init__(self, paths: Iterable[str], *, mode: str) -> None:
        self.mode = mode
        self.rows = [Rows(path) for path in paths]

    def load(self) -> None:
        """Read which pictures have rows. Where a run was killed before it took out the rows that
        it had replaced, they go now. Raises UsageError for files of another kind, and OSError.
        """
        for rows in self.rows:
            remove_unfinished(rows.path)
            rows.load()
            if rows.has_doubles:
                rows.compact()

    def prepare(self) -> None:
        """Make the row files. Raises OSError."""
        for rows in self.rows:
            rows.prepare()

    def describe(
        self,
        picture: str,
        sidecar: str | None,
        caption: str,
        prompt: str,
        record: Mapping[str, Any],
        *,
        again: bool,
    ) -> dict[str, Any]:
        """What is to be written for a picture: the part of ``made`` that ``write`` and ``complete``
        act on. Nothing is written where a caption is to be kept, unless it is made ``again``.
        """
        plan: dict[str, Any] = {"rows": []}
        if sidecar is not None:
            old = read_if_there(sidecar)
            if old is None or again or self.mode != "skip":
                new = sidecar_bytes(caption, self.mode, old)
                plan["sidecar"] = {
                    "path": sidecar,
                    "text": caption,
                    "mode": self.mode,
                    "before": None if old is None else digest(old),
                    "after": digest(new),
                }
        for rows in self.rows:
            if rows.name(picture) not in rows.names or again or self.mode != "skip":
                row = rows.encode(picture, prompt, record).decode("utf-8", "surrogateescape")
                plan["rows"].append({"path": rows.path, "row": row, "at": rows.size})
        return plan

    def write(self, plan: Mapping[str, Any]) -> None:
        """Write what ``describe`` said. Raises OSError."""
        sidecar = plan.get("sidecar")
        if sidecar is not None:
            path = sidecar["path"]
            old = read_if_there(path)
            replace_file(path, sidecar_bytes(sidecar["text"], sidecar["mode"], old))
        for part in plan["rows"]:
            self.of(part["path"]).append(part["row"].encode("utf-8", "surrogateescape"))

    def of(self, path: str) -> Rows:
        """The row file of that name: one of this batch, else one that an earlier run wrote."""
        return next((rows for rows in self.rows if rows.path == path), None) or Rows(path)

    def compact(self) -> None:
        """Take out rows that later ones of the same picture replace. Raises OSError."""
        for rows in self.rows:
            rows.compact()

    def close(self) -> None:
        """Close the row files."""
        for rows in self.rows:
            rows.close()


def relative_plan(plan: Mapping[str, Any], manifest: Manifest) -> dict[str, Any]:
    """``describe``'s paths as the manifest names files, so that all can be moved together."""
    moved: dict[str, Any] = {
        "rows": [{**part, "path": manifest.key(part["path"])} for part in plan["rows"]]
    }
    if "sidecar" in plan:
        moved["sidecar"] = {**plan["sidecar"], "path": manifest.key(plan["sidecar"]["path"])}
    return moved


def recover(manifest: Manifest, outputs: Outputs) -> list[str]:
    """Complete what a killed run had made and not finished writing; returns warnings.

    Raises OSError and UsageError as writing does.
    """
    warnings = []
    for number, entry in sorted(manifest.state.pending.items()):
        part = entry["write"].get("sidecar")
        if part is not None:
            path = os.path.join(manifest.folder, part["path"])
            if not _complete_sidecar(path, part):
                warnings.append(f"{path}: was changed by somebody else, it is left as it is")
        for row in entry["write"]["rows"]:
            rows = outputs.of(os.path.normpath(os.path.join(manifest.folder, row["path"])))
            rows.complete(row["row"].encode("utf-8", "surrogateescape"), row["at"])
            rows.close()
        done = {"status": "done", "n": number, "file": entry["file"], **entry["done"]}
        manifest.add(done)
        manifest.state.take(done)
    return warnings


def _complete_sidecar(path: str, part: Mapping[str, Any]) -> bool:
    """Write a sidecar if that was not done; False if somebody else changed it."""
    remove_unfinished(path)
    old = read_if_there(path)
    now = None if old is None else digest(old)
    if now == part["after"]:
        return True
    if now is not None and now != part["before"]:
        return False
    replace_file(path, sidecar_bytes(part["text"], part["mode"], old))
    return True
