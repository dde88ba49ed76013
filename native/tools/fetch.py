"""Gets the pinned source archive with the package client, by name, version and hash.

The archive is kept outside the repository: in $ECOKV_CACHE, else the user's cache folder.
ECOKV_LLAMA_ARCHIVE names an archive that is there already (machines without a network).
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from lock import Lock, ToolError

# pip asks the archive's own build backend for its metadata before it hands the archive out. With
# these in the environment (our build requirements bring them) it can do so at once, instead of
# building a second environment for it.
BACKEND = ("scikit_build_core", "pip")


def cache_dir() -> Path:
    if chosen := os.environ.get("ECOKV_CACHE"):
        return Path(chosen).expanduser()
    if os.name == "nt":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "ecokv-local"


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def fetch(lock: Lock) -> Path:
    """The verified archive; downloads it only if it is not there."""
    if given := os.environ.get("ECOKV_LLAMA_ARCHIVE"):
        return _verified(Path(given).expanduser(), lock, "ECOKV_LLAMA_ARCHIVE names another file")

    archive = cache_dir() / lock.archive
    if archive.is_file():
        if sha256_of(archive) == lock.sha256:
            return archive
        print(f"{archive} is damaged or of another pin: fetched again", file=sys.stderr)

    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent, prefix=".fetch-") as folder:
        _download(lock, Path(folder))
        fresh = _verified(
            Path(folder) / lock.archive, lock, "the package index serves another archive"
        )
        os.replace(fresh, archive)  # in one step: builds may run side by side
    return archive


def _verified(path: Path, lock: Lock, problem: str) -> Path:
    if not path.is_file():
        raise ToolError(f"{path} does not exist; expected the source archive of {_spec(lock)}")
    found = sha256_of(path)
    if found != lock.sha256:
        raise ToolError(
            f"{problem} than native/llama.cpp.lock pins\n"
            f"  file     {path}\n  expected sha256 {lock.sha256}\n  found    sha256 {found}\n"
            f"What to do: nothing was built from it. If the pin was moved on purpose, put the new "
            f"hash into the lock file; else do not trust the archive."
        )
    return path


def _spec(lock: Lock) -> str:
    return f"{lock.package}=={lock.version}"


def _download(lock: Lock, folder: Path) -> None:
    print(f"fetching the source archive of {_spec(lock)}", file=sys.stderr)
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{_spec(lock)} --hash=sha256:{lock.sha256}\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
    command += ["--no-binary", lock.package, "--dest", str(folder), "-r", str(requirements)]
    if all(importlib.util.find_spec(name) for name in BACKEND):
        command.insert(4, "--no-build-isolation")

    environment = dict(os.environ)
    environment.pop("PIP_BUILD_TRACKER", None)  # of the pip that is building us
    result = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, check=False)
    if result.returncode != 0:
        raise ToolError(
            f"could not fetch {_spec(lock)} (pip's message is above)\n"
            f"What to do: check the network and pip's index settings; or copy {lock.archive} from "
            f"another machine and name it in the environment variable ECOKV_LLAMA_ARCHIVE."
        )
