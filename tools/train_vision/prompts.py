"""Prompts as the engine renders them, many questions packed behind one set of images."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from .language import LanguageModel

SYSTEM = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n<|im_start|>user\n"
)
ANSWER = "<|im_end|>\n<|im_start|>assistant\n"
NEXT_TURN = "<|im_end|>\n<|im_start|>user\n"
END = "<|im_end|>"


@dataclass(frozen=True)
class Turn:
    """A question and its answer."""

    question: str
    answer: str


@dataclass(frozen=True)
class Sample:
    """Images, given by how many tokens each has and where they stand, and chains of turns.

    Every chain is a conversation of its own behind the same images. `places` holds, per image, the
    indices of the patches that are kept.
    """

    places: list[torch.Tensor]
    chains: list[list[Turn]]
    newline: bool = True


@dataclass
class Packed:
    """A batch ready for the language model. Image tokens come first in every row."""

    tokens: torch.Tensor
    is_image: torch.Tensor
    positions: torch.Tensor
    mask: torch.Tensor
    rows: torch.Tensor
    columns: torch.Tensor
    targets: torch.Tensor
    weights: torch.Tensor
    answers: torch.Tensor


class Row:
    """One sample laid out: tokens, positions, segment of each token and the answers' places."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.positions: list[int] = []
        self.segments: list[int] = []
        self.targets: list[tuple[int, int, float, int]] = []

    def add(self, tokens: list[int], positions: list[int], segment: int) -> None:
        """Append tokens of a segment; segment 0 is seen by all."""
        self.tokens += tokens
        self.positions += positions
        self.segments += [segment] * len(tokens)


class Packer:
    """Builds batches; texts are tokenized once."""

    IMAGE = -1

    def __init__(self, model: LanguageModel, patches: int) -> None:
        self.model, self.patches = model, patches
        self.system = model.encode(SYSTEM)
        self.known: dict[str, list[int]] = {}

    def encode(self, text: str) -> list[int]:
        """Tokens of a text, remembered."""
        if text not in self.known:
            self.known[text] = self.model.encode(text)
        return self.known[text]

    def row(self, sample: Sample) -> Row:
        """Lay out one sample."""
        row = Row()
        start = len(self.system)
        for places in sample.places:
            row.add([self.IMAGE] * len(places), [start + int(p) for p in places], 0)
            start += self.patches
            if sample.newline:
                row.add(self.encode("\n"), [start], 0)
                start += 1
        answers = 0
        for segment, chain in enumerate(sample.chains, 1):
            tokens: list[int] = []
            for turn in chain:
                before = NEXT_TURN if tokens else ""
                tokens += self.encode(before + turn.question + ANSWER)
                reply = self.encode(turn.answer + END)
                weight = 1 / math.sqrt(len(reply))
                first = len(row.tokens) + len(tokens) - 1
                row.targets += [
                    (first + i, token, weight, answers) for i, token in enumerate(reply)
                ]
                # the end of the answer is predicted here and belongs to the next turn's text
                tokens += reply[:-1]
                answers += 1
            row.add(tokens, list(range(start, start + len(tokens))), segment)
        return row

    def pack(self, samples: list[Sample]) -> Packed:
        """Pad the rows of samples to one length and build the mask between their segments."""
        rows = [self.row(sample) for sample in samples]
        length = max(len(row.tokens) for row in rows)
        tokens = torch.zeros(len(rows), length, dtype=torch.long)
        positions = torch.zeros(len(rows), length, dtype=torch.long)
        segments = torch.full((len(rows), length), -1)
        for i, row in enumerate(rows):
            size = len(row.tokens)
            tokens[i, :size] = torch.tensor(row.tokens)
            positions[i, :size] = torch.tensor(row.positions)
            segments[i, :size] = torch.tensor(row.segments)
        same = segments[:, :, None] == segments[:, None, :]
        visible = same | (segments == 0)[:, None, :]
        mask = visible & torch.ones(length, length, dtype=torch.bool).tril()
        past = torch.ones(len(rows), length, len(self.system), dtype=torch.bool)
        return self._gather(rows, tokens, positions, torch.cat([past, mask], -1)[:, None])

    def _gather(
        self, rows: list[Row], tokens: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor
    ) -> Packed:
        flat, offset = [], 0
        for i, row in enumerate(rows):
            flat += [(i, at, token, weight, offset + n) for at, token, weight, n in row.targets]
            offset += row.targets[-1][3] + 1
        columns = list(zip(*flat, strict=True))
        is_image = tokens == self.IMAGE
        return Packed(
            tokens.clamp_min(0),
            is_image,
            positions,
            mask,
            rows=torch.tensor(columns[0]),
            columns=torch.tensor(columns[1]),
            targets=torch.tensor(columns[2]),
            weights=torch.tensor(columns[3]),
            answers=torch.tensor(columns[4]),
        )
