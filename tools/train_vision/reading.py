"""Batches of questions through the frozen language model: loss, and answers that are right."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from ecokv_local.evaluate.scenes import Question, Scene, questions
from ecokv_local.evaluate.scenes.needle import needle_question, number_in

from .language import Adapter, Cache, LanguageModel
from .prompts import Packed, Packer, Sample, Turn

PLURAL_KINDS = ("color", "shape", "position", "number", "word")


@dataclass
class Task:
    """Scenes with the questions asked about them: one scene, or several for a `needle`."""

    scenes: list[Scene]
    chains: list[list[Question]]
    newline: bool = True

    @property
    def kinds(self) -> list[str]:
        """Kinds of all questions in the order of the packed answers."""
        return [question.kind for chain in self.chains for question in chain]


def choose_questions(item: Scene, rng: np.random.Generator, count: int) -> list[Question]:
    """Up to `count` questions, no kind far more often than the others."""
    found = questions(item, rng)
    description = found.pop()
    seen: dict[str, int] = {}
    ranked = []
    for question in found:
        seen[question.kind] = seen.get(question.kind, 0) + 1
        # an order by "how many of my kind came before" takes one of every kind first
        ranked.append((seen[question.kind] + rng.random(), question))
    ranked.sort(key=lambda pair: pair[0])
    chosen = [question for _, question in ranked[:count]]
    return [*chosen, description] if rng.random() < 0.4 else chosen


def single_task(item: Scene, rng: np.random.Generator, count: int) -> Task:
    """Questions about one scene; some of them as the second turn of a conversation."""
    chosen = choose_questions(item, rng, count)
    chains = [[question] for question in chosen]
    if len(chains) > 3 and rng.random() < 0.3:
        chains = [[chosen[0], chosen[1]], *chains[2:]]
    return Task([item], chains, newline=bool(rng.random() < 0.9))


def several_task(scenes: list[Scene], rng: np.random.Generator, count: int) -> Task:
    """Questions about one of several scenes: numbers above all, and some others."""
    chains: list[list[Question]] = []
    for target, item in enumerate(scenes, 1):
        if number_in(item) is not None:
            chains.append([needle_question(scenes, target)])
        others = [q for q in questions(item, rng) if q.kind in ("color", "position", "word")]
        for question in others[: 1 + count // (2 * len(scenes))]:
            asked = f"In image {target}, {question.question[0].lower()}{question.question[1:]}"
            chains.append([Question("needle-other", asked, question.answer)])
    order = rng.permutation(len(chains))
    return Task(scenes, [chains[int(i)] for i in order][:count])


def choose_patches(item: Scene, rng: np.random.Generator, count: int) -> torch.Tensor:
    """Patches to show: a few of every object, whole texts, and some ground."""
    owner = item.owner.reshape(-1)
    if count >= owner.size:
        return torch.arange(owner.size)
    rank = rng.random(owner.size)
    for index, thing in enumerate(item.objects):
        mine = np.flatnonzero(owner == index)
        rank[mine] += 1
        sure = len(mine) if thing.kind != "shape" else 1 + int(rng.integers(3))
        rank[rng.permutation(mine)[:sure]] += 1
    rank[rng.permutation(np.flatnonzero(owner < 0))[: count // 8]] += 1
    return torch.from_numpy(np.sort(np.argsort(-rank)[:count]))


class Reader:
    """The frozen model, the adapter and the constant start of every prompt."""

    def __init__(self, model: LanguageModel, adapter: Adapter, patches: int) -> None:
        self.model, self.adapter = model, adapter
        self.packer = Packer(model, patches)
        self.past: Cache = []
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Recompute the system prompt's keys and values, which move with the adapter."""
        past: Cache = []
        size = len(self.packer.system)
        mask = torch.ones(1, 1, size, size, dtype=torch.bool).tril()
        x = self.model.embed(self.packer.system)
        self.model.forward(x, torch.arange(size)[None], mask, adapter=self.adapter, cache=past)
        self.past = past

    def pack(self, tasks: list[Task], places: list[list[torch.Tensor]]) -> Packed:
        """Lay out tasks; `places` names the kept patches of every image."""
        samples = []
        for task, kept in zip(tasks, places, strict=True):
            chains = [[Turn(q.question, q.answer) for q in chain] for chain in task.chains]
            samples.append(Sample(kept, chains, task.newline))
        return self.packer.pack(samples)

    def loss(self, packed: Packed, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Loss over all answers, and whether each was right token by token.

        `images` [tokens, width] are the embeddings of all image tokens in order.
        """
        x = self.model.embedding[packed.tokens]
        x = x.masked_scatter(packed.is_image[..., None], images)
        hidden = self.model.forward(
            x, packed.positions, packed.mask, self.past, adapter=self.adapter
        )
        scores = self.model.logits(hidden[packed.rows, packed.columns])
        losses = F.cross_entropy(scores, packed.targets, reduction="none")
        loss = (losses * packed.weights).sum() / packed.weights.sum()
        hit = (scores.detach().argmax(-1) == packed.targets).float()
        count = int(packed.answers[-1]) + 1
        right = torch.ones(count).scatter_reduce(0, packed.answers, hit, "amin")
        return loss, right
