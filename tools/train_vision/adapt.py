"""Stage 2: teach the language model to read image tokens, at first from the truth alone."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

from ecokv_local.evaluate.scenes import SCENE_KINDS, Scene

from .common import Batches, Log, Schedule, save
from .export import load_tower
from .language import Adapter, LanguageModel
from .preprocess import normalise, to_pixels
from .pretrain import set_rate
from .reading import Reader, Task, choose_patches, several_task, single_task
from .table import Table
from .tower import Tower, TowerConfig
from .truth import patch_truth

FIRST_SEED = 10_000_000
"""Far behind the scenes of the other stages."""

KEPT = (20, 28, 40, 144)
SEVERAL_KINDS = {"text": 0.4, "mixed": 0.6}


def make_tasks(
    arguments: argparse.Namespace, rng: np.random.Generator, batches: Batches, several: Batches
) -> list[Task]:
    """Prompts of one batch: single scenes, and a share of prompts with 2 to 4 scenes."""
    found = []
    for item in batches.take(arguments.batch):
        if rng.random() < arguments.several:
            scenes = several.take(int(rng.integers(2, 5)))
            found.append(several_task(scenes, rng, arguments.questions))
        else:
            found.append(single_task(item, rng, arguments.questions))
    return [task for task in found if task.chains]


class Adaptation:
    """State of stage 2."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        torch.manual_seed(arguments.seed)
        self.arguments = arguments
        self.patches = TowerConfig().tokens
        model = LanguageModel()
        self.adapter = Adapter(model, arguments.rank, arguments.hidden_rank, arguments.alpha)
        self.table = Table(model)
        self.tower: Tower | None = None
        self.tower_time = 0.0
        self.refresh_tower()
        self.images = 0
        if arguments.resume and arguments.out.exists():
            self.resume(torch.load(arguments.out))
        self.rng = np.random.default_rng([arguments.seed, self.images])
        self.reader = Reader(model, self.adapter, self.patches)
        groups = [
            {"params": list(self.adapter.parameters()), "lr": arguments.lr},
            {"params": list(self.table.parameters()), "lr": arguments.lr * arguments.table_rate},
        ]
        self.optimizer = torch.optim.Adam(groups, betas=(0.9, 0.98))
        self.batches = Batches(FIRST_SEED + self.images, SCENE_KINDS)
        self.several = Batches(2 * FIRST_SEED + 4 * self.images, SEVERAL_KINDS)
        self.schedule = Schedule(arguments.minutes, arguments.decay_from)
        self.log = Log(arguments.log, "adapt")

    def resume(self, state: dict) -> None:
        """Continue from a checkpoint."""
        self.adapter.load_state_dict(state["adapter"])
        self.table.load_state_dict(state["table"])
        self.images = state["images"]

    def refresh_tower(self) -> None:
        """Take up the newest tower of a `pretrain` stage that runs at the same time."""
        path: Path | None = self.arguments.tower
        if path is not None and path.exists() and path.stat().st_mtime > self.tower_time:
            self.tower_time = path.stat().st_mtime
            self.tower = load_tower(torch.load(path)).requires_grad_(False)

    def embeddings(self, scenes: list[Scene], places: list[torch.Tensor]) -> torch.Tensor:
        """Embeddings of the kept patches of scenes: the tower's, or the table's with noise."""
        if self.tower is not None and self.rng.random() < self.arguments.tower_share:
            pixels = normalise(to_pixels([item.image for item in scenes], self.tower.config.image))
            embedding = self.tower(pixels)
            return torch.cat([embedding[i][place] for i, place in enumerate(places)])
        truth = [torch.from_numpy(patch_truth(s))[p] for s, p in zip(scenes, places, strict=True)]
        exact = self.table(torch.cat(truth))
        return exact + torch.randn_like(exact) * exact.detach().std() * self.arguments.noise

    def step(self) -> None:
        """One batch."""
        started = time.monotonic()
        tasks = make_tasks(self.arguments, self.rng, self.batches, self.several)
        count = int(self.rng.choice(KEPT))
        places = [[choose_patches(s, self.rng, count) for s in task.scenes] for task in tasks]
        packed = self.reader.pack(tasks, places)
        scenes = [item for task in tasks for item in task.scenes]
        images = self.embeddings(scenes, [place for kept in places for place in kept])
        loss, right = self.reader.loss(packed, images)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.adapter.parameters(), 1.0)
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
                self.refresh_tower()
        self.save()

    def save(self) -> None:
        """Write the checkpoint."""
        state = {
            "adapter": self.adapter.state_dict(),
            "ranks": (self.arguments.rank, self.arguments.hidden_rank, self.arguments.alpha),
            "table": self.table.state_dict(),
            "images": self.images,
        }
        save(self.arguments.out, state)


def parse() -> argparse.Namespace:
    """Command line of this stage."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="checkpoint to write")
    parser.add_argument("--log", type=Path, required=True, help="CSV file to append to")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--decay-from", type=float, default=0.5)
    parser.add_argument("--batch", type=int, default=3)
    parser.add_argument("--questions", type=int, default=10, help="per prompt")
    parser.add_argument("--several", type=float, default=0.0, help="share of 2-4 image prompts")
    parser.add_argument("--tower", type=Path, help="pretrain checkpoint to read images with")
    parser.add_argument("--tower-share", type=float, default=0.8, help="of batches with --tower")
    parser.add_argument("--rank", type=int, default=16, help="of the attention's maps")
    parser.add_argument("--hidden-rank", type=int, default=8, help="of the feed-forward's maps")
    parser.add_argument("--alpha", type=float, default=16)
    parser.add_argument("--noise", type=float, default=0.2, help="disturbance of the table")
    parser.add_argument("--lr", type=float, default=1.5e-3)
    parser.add_argument("--table-rate", type=float, default=2.0, help="0 keeps the table as it is")
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--resume", action="store_true")
    return parser.parse_args()


def main() -> None:
    """Run the stage."""
    arguments = parse()
    torch.set_num_threads(arguments.threads)
    Adaptation(arguments).run()


if __name__ == "__main__":
    main()
