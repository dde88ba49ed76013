"""Accuracy per kind of question on held-out scenes, in PyTorch or in llama.cpp."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from ecokv_local.evaluate.scenes import KINDS, needle, questions, scene, score

from .export import LORA, MMPROJ, load_adapter, load_tower
from .language import Adapter, Cache, LanguageModel, default_model
from .preprocess import normalise, to_pixels
from .prompts import ANSWER, SYSTEM
from .tower import Tower

Answerer = Callable[[Sequence[Image.Image], Sequence[str]], list[str]]
Scores = dict[str, list[float]]


class TorchAnswers:
    """Greedy answers of checkpoints, computed in f32."""

    def __init__(self, tower: Tower, model: LanguageModel, adapter: Adapter) -> None:
        self.tower, self.model, self.adapter = tower, model, adapter
        self.stop = model.encode("<|im_end|>")[0]

    def _embed(self, text: str) -> torch.Tensor:
        return self.model.embed(self.model.encode(text))

    def prefix(self, images: Sequence[Image.Image]) -> torch.Tensor:
        """Embeddings of a prompt up to its last image."""
        parts = [self._embed(SYSTEM)]
        for image in images:
            pixels = normalise(to_pixels([image], self.tower.config.image))
            parts += [self.tower(pixels), self._embed("\n")]
        return torch.cat(parts[:-1], 1)

    def run(self, x: torch.Tensor, past: Cache | None) -> tuple[int, Cache]:
        """Most likely next token after `x`, and the cache up to it."""
        before = past[0][0].shape[2] if past else 0
        size = x.shape[1]
        cache: Cache = []
        mask = torch.ones(1, 1, size, before + size, dtype=torch.bool).tril(before)
        positions = torch.arange(before, before + size)[None]
        hidden = self.model.forward(x, positions, mask, past, adapter=self.adapter, cache=cache)
        return int(self.model.logits(hidden[0, -1]).argmax()), cache

    @torch.no_grad()
    def answers(
        self, images: Sequence[Image.Image], questions: Sequence[str], limit: int = 48
    ) -> list[str]:
        """Greedy answers to questions about the same images, which are read once."""
        seen = self.run(self.prefix(images), None)[1]
        replies = []
        for question in questions:
            tokens: list[int] = []
            token, past = self.run(self._embed("\n" + question + ANSWER), seen)
            while token != self.stop and len(tokens) < limit:
                tokens.append(token)
                token, past = self.run(self.model.embed([token]), past)
            replies.append(self.model.decode(tokens))
        return replies


def measure(answers: Answerer, split: str, scenes: range, needles: range) -> Scores:
    """Scores per kind; every scene is asked one question of each kind it has."""
    found: Scores = defaultdict(list)
    for seed in scenes:
        item = scene(seed, split)
        asked = {q.kind: q for q in questions(item, np.random.default_rng([seed, 77]))}
        replies = answers([item.image], [question.question for question in asked.values()])
        for question, reply in zip(asked.values(), replies, strict=True):
            found[question.kind].append(score(question, reply))
    for seed in needles:
        case = needle(seed, 4, split)
        images = [item.image for item in case.scenes]
        found["needle"].append(score(case.question, answers(images, [case.question.question])[0]))
    return found


def report(found: Scores) -> None:
    """Print a table."""
    for kind in KINDS:
        if found.get(kind):
            print(f"{kind:9s} {np.mean(found[kind]):6.1%} of {len(found[kind])}")


def main() -> None:
    """Evaluate checkpoints, or exported files with --files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tower", type=Path, help="checkpoint")
    parser.add_argument("--adapter", type=Path, help="checkpoint")
    parser.add_argument("--files", type=Path, help="folder of exported files; runs llama.cpp")
    parser.add_argument("--split", default="validation", choices=["validation", "test"])
    parser.add_argument("--scenes", type=int, default=100)
    parser.add_argument("--needles", type=int, default=0, help="prompts with four images")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.files:
        from .runtime import Runtime

        folder = arguments.files
        runtime = Runtime(default_model(), folder / MMPROJ, folder / LORA, arguments.threads)
        answers: Answerer = runtime.answers
    else:
        model = LanguageModel()
        tower = load_tower(torch.load(arguments.tower))
        adapter = load_adapter(torch.load(arguments.adapter), model)
        answers = TorchAnswers(tower, model, adapter).answers
    scenes, needles = range(arguments.scenes), range(arguments.needles)
    report(measure(answers, arguments.split, scenes, needles))


if __name__ == "__main__":
    main()
