"""A second run over a finished folder: seconds, and that no model is loaded.

    python benchmarks/caption_resume.py [--files 10000]

The files are made, not captioned: links to one picture, their captions, and the manifest lines that
a real run over one of them left, repeated for all. Then the command runs in a process of its own,
with a model that is not there.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def finished_folder(folder: Path, n: int, settings: tuple[str, dict[str, object]]) -> None:
    """A folder as a run leaves it."""
    from PIL import Image

    from ecokv_local.caption.manifest import FILE_NAME, encode_line
    from ecokv_local.caption.writing import digest

    first = folder / "000000.png"
    Image.new("RGB", (64, 64), "red").save(first)
    name, values = settings
    lines = [
        encode_line({"status": "manifest", "version": 1}),
        encode_line({"status": "settings", "id": name, "values": values}),
        encode_line({"status": "begin", "job": "j", "at": 0}),
    ]
    text = "A red square, and nothing else that could be described in a sentence of this length."
    hashed = digest(f"{text}\n".encode())
    for i in range(n):
        path = folder / f"{i:06}.png"
        if i:
            os.link(first, path)
        path.with_suffix(".txt").write_text(text + "\n")
        status = path.stat()
        done = {
            "size": status.st_size,
            "mtime_ns": status.st_mtime_ns,
            "settings": name,
            "job": "j",
            "sha256": "0" * 64,
            "seconds": 1.0,
            "sidecar_sha256": hashed,
        }
        sidecar = {"path": f"{i:06}.txt", "text": text, "mode": "skip", "before": None}
        write = {"rows": [], "sidecar": sidecar | {"after": hashed}}
        made = {"status": "made", "n": i + 1, "file": path.name, "write": write, "done": done}
        lines += [encode_line(made)]
        lines += [encode_line({"status": "done", "n": i + 1, "file": path.name, **done})]
    lines.append(encode_line({"status": "end", "job": "j", "at": 1}))
    (folder / FILE_NAME).write_bytes(b"".join(lines))


def settings_of(model: Path) -> tuple[str, dict[str, object]]:
    """What the command's manifest calls its settings."""
    from ecokv_local.caption import CaptionConfig, Prompts
    from ecokv_local.caption.config import (
        DEFAULT_PROMPT,
        model_values,
        settings_id,
        settings_values,
    )

    named = model_values(model, None)
    values = settings_values(CaptionConfig(), Prompts((DEFAULT_PROMPT,)).values(), named)
    return settings_id(values), values


def second_run(folder: Path, model: Path) -> tuple[float, str]:
    """Seconds of the whole process, and what it printed."""
    paths = [str(ROOT), str(ROOT / "cli"), os.environ.get("PYTHONPATH", "")]
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "ecokv_cli", "caption", str(folder), "-m", str(model)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.perf_counter() - start
    assert done.returncode == 0, done.stderr
    return seconds, done.stderr


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, model = Path(name), Path(name) / "there-is-no.gguf"
        finished_folder(folder, args.files, settings_of(model))
        runs = [second_run(folder, model) for _ in range(args.rounds)]
        assert all(f"done before  {args.files}" in " ".join(text.split("\n")) for _, text in runs)
    print(json.dumps({"files": args.files, "seconds": sorted(round(s, 3) for s, _ in runs)}))


if __name__ == "__main__":
    main()
