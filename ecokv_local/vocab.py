"""Text to tokens and back, by the model's own vocabulary."""

from __future__ import annotations

import ctypes as c
from typing import Any

from ecokv_local import native
from ecokv_local.errors import EcokvError


class Vocab:
    """The vocabulary of a loaded model."""

    def __init__(self, model: Any) -> None:
        self._ptr: Any = native.llama.llama_model_get_vocab(model)

    def tokenize(self, text: str, *, add_special: bool = False) -> list[int]:
        """Tokens of ``text``; control tokens such as ``<|im_end|>`` are recognised."""
        raw = text.encode()
        size = len(raw) + 8
        for _ in range(2):
            tokens = (native.llama.llama_token * size)()
            n = native.llama.llama_tokenize(
                self._ptr, raw, len(raw), tokens, size, add_special, True
            )
            if n >= 0:
                return list(tokens[:n])
            size = -n
        raise EcokvError(f"{len(raw)} bytes of text cannot be tokenised")

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """Bytes of a token; a character may be spread over several tokens."""
        size = 64
        for _ in range(2):
            buffer = c.create_string_buffer(size)
            n = native.llama.llama_token_to_piece(self._ptr, token, buffer, size, 0, special)
            if n >= 0:
                return buffer.raw[:n]
            size = -n
        return b""

    def ends(self, token: int) -> bool:
        """Whether the token ends a turn or the text."""
        return bool(native.llama.llama_vocab_is_eog(self._ptr, token))

    @property
    def adds_bos(self) -> bool:
        """Whether the model wants its begin token in front of a text."""
        return bool(native.llama.llama_vocab_get_add_bos(self._ptr))

    def text_of(self, name: str) -> str:
        """Text of the ``bos`` or ``eos`` token, empty if there is none."""
        token = getattr(native.llama, f"llama_vocab_{name}")(self._ptr)
        return self.piece(token, special=True).decode("utf-8", "replace") if token >= 0 else ""
