"""Names of sidecars, and collisions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecokv_local.caption.names import (
    captions_among,
    check_collisions,
    check_extension,
    sidecar_of,
)
from ecokv_local.errors import UsageError


def check(*pictures: str, full: bool = False) -> None:
    sidecars = [sidecar_of(picture, ".txt", full=full) for picture in pictures]
    check_collisions(pictures, sidecars, full=full)


def test_sidecar_names() -> None:
    assert sidecar_of("a/b.c.jpg", ".txt") == "a/b.c.txt"
    assert sidecar_of("a.b/c", ".caption") == "a.b/c.caption"
    assert sidecar_of("a/b.jpg", ".txt", full=True) == "a/b.jpg.txt"


@pytest.mark.parametrize(
    "pictures",
    [
        ("a.jpg", "a.png"),
        ("A.JPG", "a.jpg"),
        ("x/Straße.png", "x/STRASSE.jpg"),
        ("caf\u00e9.png", "cafe\u0301.png"),
    ],
)
def test_P15_pictures_that_would_share_a_sidecar(pictures: tuple[str, str]) -> None:
    with pytest.raises(UsageError) as caught:
        check(*pictures)
    assert all(picture in caught.value.message for picture in pictures)
    assert "--sidecar-name full" in caught.value.hint
    check(*pictures, full=True)


def test_P15_what_does_not_collide() -> None:
    check("a/x.jpg", "b/x.jpg", "a/y.jpg", "a/x.y.jpg")
    check("a.jpg", "a.jpg")  # the same picture


def test_P15_many_collisions_are_counted() -> None:
    with pytest.raises(UsageError, match="and 3 more"):
        check(*(f"{i}{end}" for i in range(8) for end in (".jpg", ".png")))


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0/"), min_size=1)))
def test_P15_full_names_never_collide(names: list[str]) -> None:
    check(*(name + ".png" for name in names), full=True)


@given(st.lists(st.sampled_from(["a", "A", "b", "ß", "ss", "é", "e\u0301"]), unique=True))
def test_P15_found_exactly_where_folded_names_are_equal(stems: list[str]) -> None:
    groups = {"a": 1, "A": 1, "b": 2, "ß": 3, "ss": 3, "é": 4, "e\u0301": 4}
    collide = len({groups[stem] for stem in stems}) < len(stems)
    try:
        check(*(stem + ".png" for stem in stems))
    except UsageError:
        assert collide
    else:
        assert not collide


@pytest.mark.parametrize("extension", ["txt", "", ".", ".a/b", ".jpg", ".PNG", ". "])
def test_extensions_that_cannot_be(extension: str) -> None:
    with pytest.raises(UsageError, match="--extension"):
        check_extension(extension)
    assert check_extension(".caption") == ".caption"


def test_captions_among_the_inputs_are_no_pictures() -> None:
    inputs = ["a.jpg", "a.txt", "notes.TXT"]
    assert captions_among(inputs, ".txt", full=False) == ({"a.txt"}, {"notes.TXT"})
    assert captions_among(["a.jpg", "a.jpg.txt"], ".txt", full=True) == ({"a.jpg.txt"}, set())
    assert captions_among(["a.txt.jpg"], ".txt", full=True) == (set(), set())
