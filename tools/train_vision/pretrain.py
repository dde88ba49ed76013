"""Stage 1: teach the tower what each patch shows; the language model is not run."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from torch import nn

from .common import Batches, Log, Schedule, keep_things, save, take_patches, tensors
from .dense import Heads, dense_loss, table_loss
from .language import LanguageModel
from .optimizer import Muon
from .table import Table
from .tower import Tower, TowerConfig

KINDS = {"crowded": 0.7, "shapes": 0.1, "text": 0.1, "mixed": 0.1}
"""Crowded scenes teach twice as much per step; the others keep the counts honest."""


def make_optimizers(tower: Tower, heads: Heads, lr: float) -> list[torch.optim.Optimizer]:
    """Muon for the blocks' and the projector's matrices, AdamW for everything else."""
    joint = [block.qkv.weight for block in tower.blocks]
    matrices = [
        layer.weight
        for block in tower.blocks
        for layer in (block.attention_out, block.up, block.down)
    ]
    matrices += [tower.project_in.weight, tower.project_out.weight]
    taken = {id(parameter) for parameter in joint + matrices}
    rest = [p for p in (*tower.parameters(), *heads.parameters()) if id(p) not in taken]
    groups = [{"params": joint, "blocks": 3}, {"params": matrices}]
    return [
        Muon(groups, lr),
        torch.optim.AdamW(rest, lr=lr * 0.1, betas=(0.9, 0.98), weight_decay=0.01),
    ]


def set_rate(optimizers: list[torch.optim.Optimizer], factor: float) -> None:
    """Scale every group's learning rate from its first value."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group.setdefault("full_lr", group["lr"]) * factor


class Pretraining:
    """State of stage 1."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        torch.manual_seed(arguments.seed)
        self.arguments = arguments
        self.generator = torch.Generator().manual_seed(arguments.seed)
        config = TowerConfig(
            width=arguments.width,
            layers=arguments.layers,
            heads=arguments.width // 64,
            hidden=4 * arguments.width,
        )
        self.tower, self.heads = Tower(config), Heads(config.width)
        self.table = Table(LanguageModel()).requires_grad_(False)
        self.table_time = 0.0
        self.images = 0
        self.optimizers = make_optimizers(self.tower, self.heads, arguments.lr)
        if arguments.resume and arguments.out.exists():
            self.resume(torch.load(arguments.out))
        self.batches = Batches(self.images, KINDS)
        self.schedule = Schedule(arguments.minutes, arguments.decay_from)
        self.log = Log(arguments.log, "pretrain")

    def resume(self, state: dict) -> None:
        """Continue from a checkpoint."""
        self.tower.load_state_dict(state["tower"])
        self.heads.load_state_dict(state["heads"])
        self.images = state["images"]
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            full = [group["lr"] for group in optimizer.param_groups]
            optimizer.load_state_dict(saved)
            for group, lr in zip(optimizer.param_groups, full, strict=True):
                group["lr"] = group["full_lr"] = lr

    def refresh_table(self) -> None:
        """Follow the table that the `adapt` stage trains at the same time."""
        path: Path | None = self.arguments.table
        if path is not None and path.exists() and path.stat().st_mtime > self.table_time:
            self.table_time = path.stat().st_mtime
            self.table.load_state_dict(torch.load(path)["table"])

    def step(self) -> None:
        """One batch."""
        started = time.monotonic()
        pixels, truth = tensors(self.batches.take(self.arguments.batch), self.tower.config.image)
        drawn = time.monotonic() - started
        keep = None
        if self.arguments.keep < truth.shape[1]:
            keep = keep_things(truth, self.arguments.keep, self.generator)
            truth = take_patches(truth, keep)
        features = self.tower.features(pixels, keep)
        dense, accuracy = dense_loss(self.heads, features, truth)
        distance = table_loss(self.tower.project(features), self.table(truth), truth)
        loss = dense + 0.2 * distance
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        loss.backward()
        parameters = [*self.tower.parameters(), *self.heads.parameters()]
        nn.utils.clip_grad_norm_(parameters, 2.0)
        for optimizer in self.optimizers:
            optimizer.step()
        self.images += self.arguments.batch
        seconds = time.monotonic() - started
        self.log.add(loss=loss.item(), distance=distance.item(), **accuracy)
        self.log.add(drawing=drawn / seconds, rate=self.arguments.batch / seconds)

    def run(self) -> None:
        """Train until the time is up."""
        step, last = 0, 0.0
        while self.schedule.elapsed < self.arguments.minutes:
            set_rate(self.optimizers, self.schedule.factor(step, self.arguments.warmup))
            self.step()
            step += 1
            if step % 20 == 0:
                self.log.write(minutes=self.schedule.elapsed, images=self.images)
            if self.schedule.elapsed - last > 2:
                last = self.schedule.elapsed
                self.save()
                self.refresh_table()
        self.save()

    def save(self) -> None:
        """Write the checkpoint."""
        state = {
            "config": self.tower.config.to_dict(),
            "tower": self.tower.state_dict(),
            "heads": self.heads.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "images": self.images,
        }
        save(self.arguments.out, state)


def parse() -> argparse.Namespace:
    """Command line of this stage."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="checkpoint to write")
    parser.add_argument("--log", type=Path, required=True, help="CSV file to append to")
    parser.add_argument("--table", type=Path, help="adapt checkpoint whose table to follow")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--decay-from", type=float, default=0.4)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--keep", type=int, default=48, help="patches kept per image")
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--warmup", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--resume", action="store_true")
    return parser.parse_args()


def main() -> None:
    """Run the stage."""
    arguments = parse()
    torch.set_num_threads(arguments.threads)
    Pretraining(arguments).run()


if __name__ == "__main__":
    main()
