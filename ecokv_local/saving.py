"""Sessions to files and back: what is kept of one, and whether a file fits an engine."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ecokv_local import ekv
from ecokv_local.config import EvictionConfig, SamplingConfig, changed
from ecokv_local.context import Mark
from ecokv_local.errors import EcokvError, ImageError, SessionFileError
from ecokv_local.groups import Span
from ecokv_local.identity import file_identity, same_file
from ecokv_local.images import ImageInput, LoadedImage
from ecokv_local.messages import Message
from ecokv_local.session import Session
from ecokv_local.window import Read

if TYPE_CHECKING:
    from ecokv_local.engine import Engine


@dataclass(frozen=True)
class SavedImage(ImageInput):
    """An image of a loaded session. Its rows are in the cache; its pixels are where they were, and
    are needed only if the conversation has to be read again. ``digest`` is of that file.
    """

    digest: str = ""

    def load(self) -> LoadedImage:
        """Decode it. Raises ImageError if its file is gone or another one by now."""
        if not self.digest or _digest(self.source) != self.digest:
            raise ImageError(
                f"{self.name}: the conversation has to be read again, and this picture is not in "
                "the session file" + (", nor unchanged on the disk" if self.digest else ""),
                hint="load the session again and leave system prompt and budget as they are, "
                "or /clear",
            )
        return super().load()


def _digest(source: Any) -> str:
    """SHA-256 of an image file, empty where the image is no file that can be read."""
    if not isinstance(source, (str, Path)):
        return ""
    try:
        return hashlib.sha256(Path(source).read_bytes()).hexdigest()
    except OSError:
        return ""


# ---- save


def save(session: Session, path: str | Path) -> int:
    """Write what a session needs to go on in another process; returns the bytes of the file.

    The file is whole or not there, and an old one stays as it was on any failure. Raises
    ModelError if the memory of the model cannot be saved, EcokvError if the disk is full.
    """
    cache = session.context.state()
    info = {
        "program": "ecokv-local",
        "files": _files(session.engine, session.seeing, _has_images(session)),
        "cache": _cache(session),
        "n_ctx": session.context.params.n_cells,
        "n_rows": session.n_rows,
        "n_position": session.n_position,
        "eviction": session.eviction.plain(),
    }
    talk = json.dumps(_conversation(session), ensure_ascii=False).encode()
    try:
        return ekv.write(path, ekv.SessionFile(info, {"conversation": talk, "cache": cache}))
    except OSError as error:
        raise EcokvError(
            f"{path}: the session could not be saved ({error.strerror}); "
            "a file that was there is as it was",
            hint="free some space, or save it elsewhere",
        ) from error


def _has_images(session: Session) -> bool:
    return any(m.images for m in (*session.messages, *session.opening))


def _files(engine: Engine, seeing: bool, images: bool) -> dict[str, Any]:
    """What the rows depend on; the projector only where images were read."""
    return {
        "model": file_identity(engine.model_path),
        "mmproj": file_identity(engine.mmproj_path) if images and engine.mmproj_path else None,
        "lora": [file_identity(path) for path in engine.lora_files(seeing=seeing)],
    }


def _cache(session: Session) -> dict[str, Any]:
    engine = session.engine
    return {
        "type_k": engine.cache_type_k,
        "type_v": engine.cache_type_v,
        "flash_attn": session.context.flash_attn,
    }


def _conversation(session: Session) -> dict[str, Any]:
    read, before = session.reads
    return {
        "system": session.system,
        "messages": [_message(m) for m in session.messages],
        "opening": [_message(m) for m in session.opening],
        "read": asdict(read),
        "before": asdict(before),
        "spans": [asdict(span) for span in session.context.spans],
        "mark": list(session.context.mark()),
        "seeing": session.seeing,
        "n_evictions": session.stats()["n_evictions"],
    }


def _message(message: Message) -> dict[str, Any]:
    images = []
    for image in message.images:
        digest = image.digest if isinstance(image, SavedImage) else _digest(image.source)
        source = os.path.abspath(str(image.source)) if digest else ""
        images.append({"name": image.name, "path": source, "sha256": digest})
    return {"role": message.role, "text": message.text, "images": images}


# ---- load


def load(
    engine: Engine,
    path: str | Path,
    *,
    sampling: SamplingConfig | None = None,
    n_ctx: int | None = None,
    **eviction: Any,
) -> Session:
    """A session that goes on where the one in the file was saved.

    ``eviction`` are fields of ``EvictionConfig`` to change. Raises SessionFileError if the file is
    missing, damaged, of a newer version, or was saved with another model, projector, adapter or
    cache.
    """
    file = ekv.read(path)
    try:
        talk = json.loads(file.sections["conversation"])
        images = any(m["images"] for m in (*talk["messages"], *talk["opening"]))
        found = _files(engine, talk["seeing"], images)
        _check_files(path, file.info["files"], found)
        config = changed(EvictionConfig(**file.info["eviction"]), **eviction)
        session = engine.session(
            system=talk["system"],
            eviction=config,
            sampling=sampling,
            n_ctx=n_ctx or file.info["n_ctx"],
        )
        try:
            _check_cache(path, file.info["cache"], _cache(session))
            _restore(session, talk, file.sections["cache"])
        except BaseException:
            session.close()
            raise
    except (KeyError, TypeError, ValueError) as error:
        raise SessionFileError(
            f"{path}: the session file cannot be understood ({type(error).__name__}: {error})",
            hint="was it written by another version of ecokv-local?",
        ) from error
    return session


_KINDS = {"model": ("model", "-m"), "mmproj": ("projector", "--mmproj")}


def _check_files(path: str | Path, saved: dict[str, Any], found: dict[str, Any]) -> None:
    for key, (what, flag) in _KINDS.items():
        old, new = saved[key], found[key]
        if old and not (new and same_file(old, new)):
            raise SessionFileError(
                f"{path}: was saved with the {what} {old['name']} ({old['bytes']} bytes), "
                f"not {'with ' + new['name'] if new else 'without one'}"
                + (" as it is now" if new and old["name"] == new["name"] else ""),
                hint=f"load it with {flag} {old['name']}",
            )
    old, new = saved["lora"], found["lora"]
    if len(old) != len(new) or not all(map(same_file, old, new)):
        names = ", ".join(a["name"] for a in old) or "none"
        raise SessionFileError(
            f"{path}: was saved with other LoRA adapters ({names})",
            hint="load it with the same --lora files",
        )


_FLAGS = {"type_k": "-ctk", "type_v": "-ctv", "flash_attn": "-fa"}


def _check_cache(path: str | Path, saved: dict[str, Any], found: dict[str, Any]) -> None:
    for key, flag in _FLAGS.items():
        if saved[key] != found[key]:
            old, new = (
                {True: "on", False: "off"}.get(x, x) if key == "flash_attn" else x
                for x in (saved[key], found[key])
            )
            raise SessionFileError(
                f"{path}: was saved with {flag} {old}, this engine has {new}",
                hint=f"load it with {flag} {old}",
            )


def _restore(session: Session, talk: dict[str, Any], cache: bytes) -> None:
    read, before = _read(talk["read"]), _read(talk["before"])
    session.context.restore_state(cache, Mark(*talk["mark"]))
    session.context.spans = tuple(Span(**span) for span in talk["spans"])
    session.resume(
        [_saved_message(m) for m in talk["messages"]],
        [_saved_message(m) for m in talk["opening"]],
        (read, before),
        seeing=talk["seeing"],
        n_evictions=talk["n_evictions"],
    )


def _read(values: dict[str, Any]) -> Read:
    return Read(**{**values, "end": Mark(*values["end"])})


def _saved_message(message: dict[str, Any]) -> Message:
    images = tuple(
        SavedImage(Path(image["path"]), image["name"], digest=image["sha256"])
        for image in message["images"]
    )
    return Message(message["role"], message["text"], images)
