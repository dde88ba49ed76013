"""The language model's tokenizer, rebuilt from its GGUF."""

from __future__ import annotations

import gguf
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

_CONTROL = 3


def load_tokenizer(reader: gguf.GGUFReader) -> Tokenizer:
    """SmolLM2's byte-level BPE: every digit is a token of its own."""
    tokens = _strings(reader, "tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in _strings(reader, "tokenizer.ggml.merges")]
    kinds = reader.fields["tokenizer.ggml.token_type"]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [i for i, part in enumerate(kinds.data) if int(kinds.parts[part][0]) == _CONTROL]
    tokenizer.add_special_tokens(
        [AddedToken(tokens[i], special=True, normalized=False) for i in control]
    )
    return tokenizer


def _strings(reader: gguf.GGUFReader, key: str) -> list[str]:
    field = reader.fields[key]
    return [bytes(field.parts[i]).decode("utf-8") for i in field.data]
