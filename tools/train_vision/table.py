"""Truth of a patch as a sum of vectors in the language model's embedding space."""

from __future__ import annotations

import torch
from torch import nn

from ecokv_local.evaluate.scenes.vocabulary import COLORS, POSITIONS

from .language import LanguageModel
from .truth import CONTENT, MAX_COUNT, ROLES


class Table(nn.Module):
    """Starts as sums of the model's own token embeddings, so that it can read them early on."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.norm = float(model.embedding.norm(dim=1).mean())
        counts = [str(number) for number in range(MAX_COUNT + 1)]
        self.color = self._part(model, list(COLORS), 0.9, ground=True)
        self.content = self._part(model, list(CONTENT), 0.9, ground=True)
        self.position = self._part(model, list(POSITIONS), 0.45)
        self.role = self._part(model, [role.split()[0] for role in ROLES], 0.2)
        self.alike = self._part(model, counts, 0.3)
        self.total = self._part(model, counts, 0.4)
        self.ground = nn.Parameter(self._vector(model, ".") * 0.4)

    def _vector(self, model: LanguageModel, words: str) -> torch.Tensor:
        """Mean of the embeddings of a name's words, with and without a leading space."""
        rows = []
        for word in words.split():
            for text in (word, " " + word):
                tokens = model.encode(text)
                rows += [model.embedding[tokens[-1]]] if len(tokens) == 1 else []
        total = torch.stack(rows).sum(0)
        return total / total.norm() * self.norm

    def _part(
        self, model: LanguageModel, names: list[str], weight: float, ground: bool = False
    ) -> nn.Parameter:
        rows = [self._vector(model, name) * weight for name in names]
        if ground:
            rows.insert(0, torch.zeros(model.width))
        return nn.Parameter(torch.stack(rows))

    def forward(self, truth: torch.Tensor) -> torch.Tensor:
        """Embeddings [..., width] of truth [..., channels]."""
        color, content, position, role, alike, total = truth.unbind(-1)
        thing = self.color[color] + self.content[content] + self.position[position]
        thing = thing + self.role[role] + self.alike[alike]
        return torch.where((color > 0)[..., None], thing, self.ground + self.total[total])
