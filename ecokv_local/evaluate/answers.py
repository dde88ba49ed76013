"""Answers on disk, one line each: a run that was broken off goes on where it was."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ecokv_local
from ecokv_local.errors import EcokvError
from ecokv_local.evaluate.branches import Reply
from ecokv_local.identity import file_identity

if TYPE_CHECKING:
    from ecokv_local.engine import Engine

#: Raised when answers of older versions no longer count.
VERSION = 1


class Answers:
    """The file of one model and cache type: replies by item and variant. ``close`` it."""

    def __init__(self, folder: str | Path, identity: Mapping[str, Any]) -> None:
        text = json.dumps(identity, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        self.path = Path(folder) / f"answers-{digest}.jsonl"
        self.known: dict[tuple[str, str], Reply] = {}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._read()
            self._file = self.path.open("a", encoding="utf-8")
            if self._file.tell() == 0:
                self._write(dict(identity))
        except OSError as error:
            raise EcokvError(
                f"{self.path}: the answers cannot be kept: {error.strerror or error}",
                hint="choose another folder with -o",
            ) from error

    def _read(self) -> None:
        """What an earlier run wrote; a last line that was cut off is removed."""
        if not self.path.exists():
            return
        whole = 0
        for line in self.path.read_bytes().splitlines(keepends=True):
            if not line.endswith(b"\n"):
                break
            entry = self._parse(line)
            if entry is not None:
                key, reply = entry
                self.known[key] = reply
            whole += len(line)
        if whole < self.path.stat().st_size:
            os.truncate(self.path, whole)

    @staticmethod
    def _parse(line: bytes) -> tuple[tuple[str, str], Reply] | None:
        try:
            entry = json.loads(line)
            key = (str(entry["item"]), str(entry["variant"]))
            return key, Reply(str(entry["text"]), int(entry["n_kept"]), int(entry["n_prompt"]))
        except (ValueError, KeyError, TypeError):
            return None  # the head of the file, or a damaged line: it is answered again

    def add(self, item: str, replies: Mapping[str, Reply]) -> None:
        """Keep the replies of an item by variant. Raises EcokvError if the disk is full."""
        for variant, reply in replies.items():
            self.known[item, variant] = reply
        lines = [{"item": item, "variant": v, **asdict(r)} for v, r in replies.items()]
        try:
            self._write(*lines)
        except OSError as error:
            raise EcokvError(
                f"{self.path}: {error.strerror or error}", hint="make room, and run it again"
            ) from error

    def _write(self, *entries: Mapping[str, Any]) -> None:
        lines = (json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries)
        self._file.write("".join(lines))
        self._file.flush()

    def close(self) -> None:
        """Close the file; idempotent."""
        self._file.close()


def identity_of(engine: Engine) -> dict[str, Any]:
    """All that an answer depends on, besides the item and the variant."""
    files = [engine.model_path, *([engine.mmproj_path] if engine.mmproj_path else [])]
    return {
        "version": VERSION,
        "ecokv": ecokv_local.__version__,
        "files": [file_identity(path)["sha256"] for path in [*files, *engine.lora_paths]],
        "cache": [engine.cache_type_k, engine.cache_type_v],
        "flash_attn": engine.flash_attn,
    }
