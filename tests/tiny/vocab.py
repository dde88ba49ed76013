"""A vocabulary of all bytes, a few merges and the control tokens of chat models."""

from __future__ import annotations

import gguf

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MERGES = ("t h", "th e", "i n", "Ġ t", "Ġ a")
CONTROL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<start_of_image>",
    "<end_of_image>",
)
#: Those of a model whose pictures are cut into tiles.
TILES = ("\n\n", "<fake_token_around_image>", "<global-img>")


def byte_letters() -> list[str]:
    """The letter that stands for each of the 256 bytes in a GPT-2 vocabulary."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def tokens() -> list[str]:
    """Text of every token; the token of a byte has the byte as its number."""
    return [*byte_letters(), *(merge.replace(" ", "") for merge in MERGES), *CONTROL]


def add_vocab(
    writer: gguf.GGUFWriter, chat_template: str | None, more: tuple[str, ...] = ()
) -> int:
    """Write the vocabulary, with ``more`` control tokens at its end; its size."""
    texts = [*tokens(), *more]
    n_control = len(CONTROL) + len(more)
    n_normal = len(texts) - n_control
    types = [gguf.TokenType.NORMAL] * n_normal + [gguf.TokenType.CONTROL] * n_control
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(texts)
    writer.add_token_types(types)
    writer.add_token_merges(list(MERGES))
    writer.add_bos_token_id(texts.index("<|im_start|>"))
    writer.add_eos_token_id(texts.index("<|im_end|>"))
    writer.add_add_bos_token(False)
    if chat_template is not None:
        writer.add_chat_template(chat_template)
    return len(texts)
