"""native/patches and the tools around them (native/tools)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lock
import patch
import source
import unidiff

ROOT = Path(__file__).resolve().parent.parent
PATCHES = ROOT / "native" / "patches"
TOOL = ROOT / "native" / "tools" / "patch.py"

HEADER = "Why: a test\nTouches: src/a.cpp (+1)\nDrop-when: never\n\n"
GOOD = HEADER + (
    "--- a/src/a.cpp\n+++ b/src/a.cpp\n@@ -1,3 +1,4 @@\n"
    " int one;\n+int more;\n int two;\n int three;\n"
)
PRISTINE = "int one;\nint two;\nint three;\n"


@pytest.fixture(scope="session")
def pinned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pinned source, unpatched."""
    tree = tmp_path_factory.mktemp("pinned") / "llama.cpp"
    source.unpack(lock.read_lock(), tree)
    return tree


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A tree with one file, and a folder with one patch for it."""
    (tmp_path / "tree" / "src").mkdir(parents=True)
    (tmp_path / "tree" / "src" / "a.cpp").write_text(PRISTINE)
    write_patches(tmp_path, GOOD)
    return tmp_path


def write_patches(folder: Path, *texts: str) -> None:
    (folder / "patches").mkdir(exist_ok=True)
    names = [f"{number:04}-test.patch" for number in range(1, len(texts) + 1)]
    for name, text in zip(names, texts, strict=True):
        (folder / "patches" / name).write_text(text)
    (folder / "patches" / "series").write_text("".join(f"{name}\n" for name in names))


def run_tool(*args: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, TOOL, *args], capture_output=True, text=True, check=False, timeout=120
    )


# --- the patches of this repository -------------------------------------------------------------


def test_patches_are_few_additive_and_explained(pinned: Path) -> None:
    patches = patch.read_series(PATCHES)
    assert patches, "native/patches/series names no patch"
    assert patch.check(patches, pinned) == []


def test_every_patch_file_is_in_the_series() -> None:
    series = {each.path.name for each in patch.read_series(PATCHES)}
    assert {path.name for path in PATCHES.glob("*.patch")} == series


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_git_applies_and_reverses_them_to_the_same_bytes(pinned: Path, tmp_path: Path) -> None:
    patches = patch.read_series(PATCHES)
    names = [file.path for each in patches for file in each.files]
    ours, gits = tmp_path / "ours", tmp_path / "git"
    for tree in (ours, gits):
        for name in names:
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(pinned / name, tree / name)

    patch.apply_all(patches, ours)
    # the tree is no repository of its own; an outer one must not matter
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tmp_path)}
    for each in patches:
        subprocess.run(["git", "apply", each.path], cwd=gits, env=environment, check=True)
    assert [(gits / n).read_bytes() for n in names] == [(ours / n).read_bytes() for n in names]

    for each in reversed(patches):
        subprocess.run(["git", "apply", "-R", each.path], cwd=gits, env=environment, check=True)
    assert [(gits / n).read_bytes() for n in names] == [(pinned / n).read_bytes() for n in names]


def test_refresh_of_the_patched_tree_changes_nothing(pinned: Path, tmp_path: Path) -> None:
    tree, patches = tmp_path / "tree", tmp_path / "patches"
    shutil.copytree(pinned, tree)
    shutil.copytree(PATCHES, patches)
    patch.apply_all(patch.read_series(patches), tree)
    before = {path.name: path.read_bytes() for path in patches.iterdir()}
    patch.refresh(patches, tree, None)
    assert {path.name: path.read_bytes() for path in patches.iterdir()} == before


# --- the pin ------------------------------------------------------------------------------------


def test_the_dependency_is_the_pin() -> None:
    pin = lock.read_lock()
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert re.findall(rf'"{pin.package}([^"]*)"', text) == [f"=={pin.version}"]
    assert pin.version in pin.archive


def test_an_archive_with_another_hash_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other.tar.gz").write_bytes(b"something else")
    monkeypatch.setenv("ECOKV_LLAMA_ARCHIVE", str(tmp_path / "other.tar.gz"))
    with pytest.raises(lock.ToolError, match="expected sha256") as caught:
        source.fetch(lock.read_lock())
    assert "other.tar.gz" in str(caught.value)
    assert "What to do" in str(caught.value)


# --- apply --------------------------------------------------------------------------------------


def test_apply_is_idempotent_and_reverse_restores(small: Path) -> None:
    file = small / "tree" / "src" / "a.cpp"
    args = ("--patches", small / "patches", "--tree", small / "tree")

    assert "0001-test.patch: applied" in run_tool("apply", *args).stdout
    assert file.read_text() == "int one;\nint more;\nint two;\nint three;\n"
    assert "already applied" in run_tool("apply", *args).stdout
    assert file.read_text() == "int one;\nint more;\nint two;\nint three;\n"
    assert run_tool("reverse", *args).returncode == 0
    assert file.read_text() == PRISTINE


def test_a_patch_that_does_not_apply_says_where_and_what_next(small: Path) -> None:
    second = HEADER + (
        "--- a/src/b.cpp\n+++ b/src/b.cpp\n"
        "@@ -1,1 +1,2 @@\n first\n+new\n"
        "@@ -3,2 +4,3 @@\n third\n+new\n fourth\n"
    )
    (small / "tree" / "src" / "b.cpp").write_text("first\nsecond\nthird\nFOURTH\n")
    write_patches(small, GOOD, second)
    result = run_tool("apply", "--patches", small / "patches", "--tree", small / "tree")

    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    for part in (
        "0002-test.patch does not apply",
        "file     src/b.cpp",
        "hunk     2: @@ -3,2 +4,3 @@",
        "line     4",
        "expected 'fourth'",
        "found    'FOURTH'",
        "What to do next",
        "patch.py refresh --tree",
    ):
        assert part in result.stderr
    # nothing of the file was written, not even the hunk that fits
    assert (small / "tree" / "src" / "b.cpp").read_text() == "first\nsecond\nthird\nFOURTH\n"


def test_a_file_that_is_gone_is_named(small: Path) -> None:
    (small / "tree" / "src" / "a.cpp").unlink()
    result = run_tool("apply", "--patches", small / "patches", "--tree", small / "tree")
    assert result.returncode == 1
    assert "src/a.cpp is not in the pinned source" in result.stderr
    assert "What to do next" in result.stderr


def test_a_hunk_is_found_where_lines_have_moved(small: Path) -> None:
    file = small / "tree" / "src" / "a.cpp"
    file.write_text("// new line above\n" + PRISTINE)
    patch.apply_all(patch.read_series(small / "patches"), small / "tree")
    assert file.read_text() == "// new line above\nint one;\nint more;\nint two;\nint three;\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (GOOD.replace("+int more;", "-int two;\n+int 2;").replace(" int two;\n", ""), "removed"),
        (GOOD.replace("Why: a test\n", ""), "lacks 'Why:'"),
        (GOOD.replace("never", "TODO"), "lacks 'Drop-when:'"),
        (GOOD.replace("(+1)", "(+2)"), "'Touches:' is out of date"),
        (GOOD.replace("+int more;\n", "+int more;\n" * 81).replace("+1,4", "+1,84"), "81 added"),
        (GOOD.replace(" int three;", " int four;"), "does not apply"),
    ],
)
def test_check_finds(small: Path, text: str, problem: str) -> None:
    write_patches(small, text)
    problems = patch.check(patch.read_series(small / "patches"), small / "tree")
    assert any(problem in each for each in problems), problems
    assert (small / "tree" / "src" / "a.cpp").read_text() == PRISTINE


def test_check_finds_too_many_files_and_a_file_in_two_patches(small: Path) -> None:
    for name in "bcdefg":
        (small / "tree" / "src" / f"{name}.cpp").write_text(PRISTINE)
    more = [GOOD.replace("a.cpp", f"{name}.cpp") for name in "bcdefg"]
    write_patches(small, GOOD, *more)
    problems = patch.check(patch.read_series(small / "patches"), small / "tree")
    assert problems == ["7 files, at most 6 are allowed"]

    write_patches(small, GOOD, GOOD)
    problems = patch.check(patch.read_series(small / "patches"), small / "tree")
    assert any("more than one patch" in each for each in problems)


def test_crlf_and_a_missing_patch_are_refused(small: Path) -> None:
    (small / "patches" / "0001-test.patch").write_bytes(GOOD.replace("\n", "\r\n").encode())
    with pytest.raises(lock.ToolError, match="CRLF"):
        patch.read_series(small / "patches")
    (small / "patches" / "0001-test.patch").unlink()
    with pytest.raises(lock.ToolError, match=r"0001-test\.patch"):
        patch.read_series(small / "patches")


# --- diffs --------------------------------------------------------------------------------------

LINES = st.lists(st.sampled_from(["", "}", "{", "a", "b", "    }"]), max_size=30)


@given(before=LINES, inserts=st.lists(st.tuples(st.integers(0, 30), LINES), max_size=4))
def test_insertions_make_an_additive_diff(
    before: list[str], inserts: list[tuple[int, list[str]]]
) -> None:
    after = list(before)
    for at, lines in inserts:
        after[at:at] = lines
    old, new = ("".join(f"{line}\n" for line in lines) for lines in (before, after))
    made = unidiff.diff("f", old, new)
    assert made.removed == 0
    assert made.added == len(after) - len(before)
    check_diff(old, new, made)


@given(before=LINES, after=LINES)
def test_any_diff_round_trips(before: list[str], after: list[str]) -> None:
    old, new = ("".join(f"{line}\n" for line in lines) for lines in (before, after))
    check_diff(old, new, unidiff.diff("f", old, new))


def check_diff(old: str, new: str, made: unidiff.FileDiff) -> None:
    if not made.hunks:
        assert old == new
        return
    _, [parsed] = unidiff.parse(made.format())
    assert parsed == made
    assert parsed.apply(old) == new
    assert parsed.reversed().apply(new) == old


# --- the tree of the build ----------------------------------------------------------------------


def test_a_changed_tree_replaces_only_what_differs(tmp_path: Path) -> None:
    fresh, target = tmp_path / "fresh", tmp_path / "target"
    for tree, text in ((fresh, "new"), (target, "old")):
        (tree / "src").mkdir(parents=True)
        (tree / "src" / "same").write_text("same")
        (tree / "src" / "changed").write_text(text)
    (target / "src" / "gone").write_text("")
    os.utime(target / "src" / "same", (1, 1))

    source.replace_changed(fresh, target)

    assert (target / "src" / "same").stat().st_mtime == 1  # not compiled again
    assert (target / "src" / "changed").read_text() == "new"
    assert not (target / "src" / "gone").exists()


def test_the_tree_is_keyed_by_pin_and_patches(small: Path) -> None:
    pin = lock.read_lock()
    keys = {source.tree_key(pin, []), source.tree_key(pin, patch.read_series(small / "patches"))}
    write_patches(small, GOOD.replace("int more", "int less"))
    keys.add(source.tree_key(pin, patch.read_series(small / "patches")))
    assert len(keys) == 3
