"""Characters that are spread over tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecokv_local.utf8 import Utf8Decoder


def test_P31_emoji_byte_by_byte_comes_out_whole() -> None:
    decoder = Utf8Decoder()
    pieces = [decoder.feed(bytes([byte])) for byte in "🙂".encode()]
    assert pieces == ["", "", "", "🙂"]
    assert decoder.flush() == ""


@given(st.text(), st.lists(st.integers(0, 40)))
def test_P31_any_text_cut_anywhere_is_unchanged(text: str, cuts: list[int]) -> None:
    raw, out, decoder = text.encode(), "", Utf8Decoder()
    for cut in cuts:
        out += decoder.feed(raw[:cut])
        raw = raw[cut:]
    out += decoder.feed(raw)
    assert out == text and decoder.flush() == ""


@given(st.lists(st.binary()))
def test_P31_broken_bytes_are_decoded_as_python_does(pieces: list[bytes]) -> None:
    decoder = Utf8Decoder()
    out = "".join(decoder.feed(piece) for piece in pieces) + decoder.flush()
    assert out == b"".join(pieces).decode(errors="replace")


@pytest.mark.parametrize("size", [1, 2, 3])
def test_P31_an_unfinished_character_shows_only_at_the_end(size: int) -> None:
    decoder = Utf8Decoder()
    assert decoder.feed(b"ok" + "🙂".encode()[:size]) == "ok"
    assert decoder.pending == "🙂".encode()[:size]
    assert decoder.flush() == "\ufffd"
    assert decoder.pending == b""
    assert decoder.feed(b"next") == "next"


def test_P31_accent_and_joined_emoji() -> None:
    text = "e\u0301 👩\u200d🚀"
    decoder = Utf8Decoder()
    assert "".join(decoder.feed(bytes([b])) for b in text.encode()) == text
