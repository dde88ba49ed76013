"""Stage 3: tower, projector and adapter together, through the frozen language model."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

from ecokv_local.evaluate.scenes import SCENE_KINDS, Scene

from .adapt import SEVERAL_KINDS, make_tasks
from .common import Batches, Log, Schedule, save, tensors
from .dense import Heads, dense_loss, table_loss
from .export import load_adapter, load_tower
from .language import LanguageModel
from .pretrain import set_rate
from .reading import Reader, choose_patches
from .table import Table

FIRST_SEED = 100_000_000
"""Far behind the scenes of the other stages."""

KEPT = (24, 32, 48, 144)
KEPT_CHANCES = (0.2, 0.25, 0.25, 0.3)


class Joint:
    """State of stage 3."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        torch.manual_seed(arguments.seed)
        self.arguments = arguments
        model = LanguageModel()
        again = arguments.resume and arguments.out.exists()
        tower_state = torch.load(arguments.out if again else arguments.tower)
        adapter_state = torch.load(arguments.out if again else arguments.adapter)
        self.ranks = adapter_state["ranks"]
        self.tower = load_tower(tower_state).train()
        self.heads = Heads(self.tower.config.width)
        self.heads.load_state_dict(tower_state["heads"])
        self.adapter = load_adapter(adapter_state, model).train()
        self.table = Table(model).requires_grad_(False)
        self.table.load_state_dict(adapter_state["table"])
        self.images = tower_state["images"] if again else 0
        self.rng = np.random.default_rng([arguments.seed, self.images])
        self.reader = Reader(model, self.adapter, self.tower.config.tokens)
        self.batches = Batches(FIRST_SEED + self.images, SCENE_KINDS)
        self.several = Batches(2 * FIRST_SEED + 4 * self.images, SEVERAL_KINDS)
        self.extra = Batches(3 * FIRST_SEED + arguments.extra * self.images, SCENE_KINDS)
        self.optimizer = self.make_optimizer()
        self.schedule = Schedule(arguments.minutes, arguments.decay_from)
        self.log = Log(arguments.log, "joint")

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Adam; the tower, which already sees, moves more slowly than what reads from it."""
        projector = [*self.tower.project_in.parameters(), *self.tower.project_out.parameters()]
        ids = {id(parameter) for parameter in projector}
        body = [parameter for parameter in self.tower.parameters() if id(parameter) not in ids]
        lr = self.arguments.lr
        groups = [
            {"params": [*body, *self.heads.parameters()], "lr": lr * 0.3},
            {"params": projector, "lr": lr * 0.6},
            {"params": list(self.adapter.parameters()), "lr": lr},
        ]
        return torch.optim.Adam(groups, betas=(0.9, 0.98))

    def seen(self, scenes: list[Scene], places: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Embeddings of the kept patches, and the dense loss over all patches.

        A few extra scenes that the language model never sees keep the dense heads exact: they
        cost a small part of what a question costs.
        """
        extra = self.extra.take(self.arguments.extra)
        pixels, truth = tensors(scenes + extra, self.tower.config.image)
        features = self.tower.features(pixels)
        dense, accuracy = dense_loss(self.heads, features, truth)
        embedding = self.tower.project(features)
        distance = table_loss(embedding, self.table(truth), truth)
        kept = [embedding[i][place] for i, place in enumerate(places)]
        self.log.add(distance=distance.item(), **{f"dense {k}": v for k, v in accuracy.items()})
        return torch.cat(kept), dense + 0.2 * distance

    def step(self) -> None:
        """One batch."""
        started = time.monotonic()
        tasks = make_tasks(self.arguments, self.rng, self.batches, self.several)
        count = int(self.rng.choice(KEPT, p=KEPT_CHANCES))
        places = [[choose_patches(s, self.rng, count) for s in task.scenes] for task in tasks]
        packed = self.reader.pack(tasks, places)
        scenes = [item for task in tasks for item in task.scenes]
        images, dense = self.seen(scenes, [place for kept in places for place in kept])
        loss, right = self.reader.loss(packed, images)
        self.optimizer.zero_grad()
        (loss + self.arguments.dense * dense).backward()
        for group in self.optimizer.param_groups:
            nn.utils.clip_grad_norm_(group["params"], 1.0)
        self.optimizer.step()
        self.images += len(tasks)
        kinds = [kind for task in tasks for kind in task.kinds]
        for kind, hit in zip(kinds, right.tolist(), strict=True):
            self.log.add(**{kind: hit})
        self.log.add(loss=loss.item(), rate=len(kinds) / (time.monotonic() - started))

    def run(self) -> None:
        """Train until the time is up."""
        step, last = 0, 0.0
        while self.schedule.elapsed < self.arguments.minutes:
            set_rate([self.optimizer], self.schedule.factor(step, self.arguments.warmup))
            self.step()
            step += 1
            if step % 5 == 0:
                self.reader.refresh()
            if step % 10 == 0:
                self.log.write(minutes=self.schedule.elapsed, images=self.images)
            if self.schedule.elapsed - last > 2:
                last = self.schedule.elapsed
                self.save()
        self.save()

    def save(self) -> None:
        """Write the checkpoint, which holds all that the export needs."""
        state = {
            "config": self.tower.config.to_dict(),
            "tower": self.tower.state_dict(),
            "heads": self.heads.state_dict(),
            "adapter": self.adapter.state_dict(),
            "ranks": self.ranks,
            "table": self.table.state_dict(),
            "images": self.images,
        }
        save(self.arguments.out, state)


def parse() -> argparse.Namespace:
    """Command line of this stage."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tower", type=Path, required=True, help="pretrain checkpoint")
    parser.add_argument("--adapter", type=Path, required=True, help="adapt checkpoint")
    parser.add_argument("--out", type=Path, required=True, help="checkpoint to write")
    parser.add_argument("--log", type=Path, required=True, help="CSV file to append to")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--decay-from", type=float, default=0.3)
    parser.add_argument("--batch", type=int, default=3)
    parser.add_argument("--extra", type=int, default=6, help="scenes for the dense heads only")
    parser.add_argument("--questions", type=int, default=10, help="per prompt")
    parser.add_argument("--several", type=float, default=0.25, help="share of 2-4 image prompts")
    parser.add_argument("--dense", type=float, default=0.3, help="weight of the dense losses")
    parser.add_argument("--lr", type=float, default=7e-4)
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--resume", action="store_true")
    return parser.parse_args()


def main() -> None:
    """Run the stage."""
    arguments = parse()
    torch.set_num_threads(arguments.threads)
    Joint(arguments).run()


if __name__ == "__main__":
    main()
