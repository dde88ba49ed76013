"""Images a second of batch captioning: parallel sequences with a budget, one at a time, and others.

    python benchmarks/caption_speed.py
    python benchmarks/caption_speed.py --mtmd-cli build/bin/llama-mtmd-cli --stock build/bin/stock

Generated scenes, one caption each, greedy, the ways in turn, so that other work on the machine
meets all of them alike. ``cpu_s`` is processor time an image, which it changes less. For captions
that differ between ``--parallel`` and one at a time, the gap between the two tokens where they part
is printed: by how much the one was ahead of the other in the single run.

``--mtmd-cli`` is a llama-mtmd-cli (started for every image) and ``--stock`` a folder of libraries,
both of the unpatched llama.cpp, for the comparison of one at a time; ``other_worker.py`` runs
llama_cpp's own chat handler on those libraries.

The built-in model says little. ``--tokens 128`` lets the ways of this package make captions of just
so many tokens: the end of the text is not listened to.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from ecokv_local import Answer, Engine, EvictionConfig
from ecokv_local.evaluate.scenes import scene
from ecokv_local.parallel import Request, auto_parallel, generate

PROMPT = "Describe the image."


class Way:
    """One way to caption: what it said and the time it took."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.texts: dict[str, str] = {}
        self.wall: list[float] = []  # of each round
        self.cpu: list[float] = []

    def record(self, wall: float, cpu: float) -> None:
        self.wall.append(wall)
        self.cpu.append(cpu)

    def report(self, n: int) -> dict[str, Any]:
        per_round = n / len(self.wall)
        return {
            "images_per_s": round(n / sum(self.wall), 4),
            "images_per_s_best_round": round(per_round / min(self.wall), 4),
            "cpu_s_per_image": round(sum(self.cpu) / n, 4),
            "words": round(float(np.mean([len(t.split()) for t in self.texts.values()])), 1),
        }


def cpu_seconds() -> float:
    """Processor time of this process and of the children that ended."""
    own, children = (
        resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def run_library(
    engine: Engine, way: Way, files: list[Path], parallel: int, budget: Any, tokens: int = 64
) -> None:
    requests = [Request(str(path), PROMPT, (path,), tokens) for path in files]
    eviction = EvictionConfig(budget=budget)
    wall, cpu = time.perf_counter(), cpu_seconds()
    for request, answer in generate(engine, requests, parallel=parallel, eviction=eviction):
        assert isinstance(answer, Answer), answer
        way.texts[request.key] = answer.text
    way.record(time.perf_counter() - wall, cpu_seconds() - cpu)


def run_cli(program: Path, stock: Path, engine: Engine, way: Way, files: list[Path]) -> None:
    command = [str(program), "-m", str(engine.model_path), "--mmproj", str(engine.mmproj_path)]
    for path in engine.lora_paths:
        command += ["--lora", str(path)]
    command += ["-p", PROMPT, "-n", "64", "--temp", "0", "-t", str(engine.threads)]
    command += ["-c", "1024", "--no-warmup"]
    environment = os.environ | {"LD_LIBRARY_PATH": f"{stock}:{stock.parent}"}
    wall, cpu = time.perf_counter(), cpu_seconds()
    for path in files:
        done = subprocess.run(
            [*command, "--image", str(path)],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        way.texts[str(path)] = done.stdout.strip()
    way.record(time.perf_counter() - wall, cpu_seconds() - cpu)


class OtherHandler:
    """llama_cpp's Llama object with its mtmd chat handler, in a process with the stock library."""

    def __init__(self, stock: Path, engine: Engine) -> None:
        worker = Path(__file__).with_name("other_worker.py")
        job = {
            "stock": str(stock),
            "model": str(engine.model_path),
            "mmproj": str(engine.mmproj_path),
            "lora": [str(path) for path in engine.lora_paths],
            "threads": engine.threads,
            "prompt": PROMPT,
        }
        self._process = subprocess.Popen(
            [sys.executable, str(worker), json.dumps(job)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, way: Way, files: list[Path]) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps([str(path) for path in files]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the worker ended with {self._process.wait()}")
        result = json.loads(line)
        way.texts.update(result["texts"])
        way.record(result["wall"], result["cpu"])

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


def gap(engine: Engine, budget: Any, path: str, one: str, other: str) -> dict[str, Any]:
    """By how much the single run preferred its token where two captions part."""
    vocab = engine.vocab
    tokens = [vocab.tokenize(text) for text in (one, other)]
    common = 0
    while common < min(map(len, tokens)) and tokens[0][common] == tokens[1][common]:
        common += 1
    session = engine.session(eviction=EvictionConfig(budget=budget))
    session.answer(PROMPT, [path], max_tokens=common)
    logits = session.context.logits()
    session.close()
    best = np.sort(logits)[::-1]
    return {"after_tokens": common, "top_two_gap": round(float(best[0] - best[1]), 5)}


def differences(engine: Engine, budget: Any, one: Way, other: Way) -> dict[str, Any]:
    apart = [key for key in one.texts if one.texts[key] != other.texts[key]]
    return {
        "equal": round(1 - len(apart) / max(1, len(one.texts)), 4),
        "n": len(one.texts),
        "different": [
            {"one": one.texts[key], "other": other.texts[key]}
            | gap(engine, budget, key, one.texts[key], other.texts[key])
            for key in apart
        ],
    }


def write_scenes(folder: Path, n: int, objects: int) -> list[Path]:
    """Scenes of at least so many objects: more objects are longer captions."""
    files: list[Path] = []
    seed = 0
    while len(files) < n:
        item = scene(seed, split="test")
        if len(item.objects) >= objects:
            files.append(folder / f"{seed:05}.png")
            item.image.save(files[-1])
        seed += 1
    return files


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=96, help="in all")
    parser.add_argument("--rounds", type=int, default=3, help="in which the ways take turns")
    parser.add_argument("--objects", type=int, default=1, help="at least so many in each picture")
    parser.add_argument("--tokens", type=int, help="of each caption, whatever the model wants")
    parser.add_argument("--parallel", type=int, default=8)
    parser.add_argument("--budget", default="64")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--auto", action="store_true", help="also say what auto would choose")
    parser.add_argument("--mtmd-cli", type=Path)
    parser.add_argument("--stock", type=Path)
    args = parser.parse_args()

    full, small, wide = (
        Way("parallel 1, full cache"),
        Way(f"parallel 1, budget {args.budget}"),
        Way(f"parallel {args.parallel}, budget {args.budget}"),
    )
    ways = [full, small, wide]
    with tempfile.TemporaryDirectory() as name, Engine(threads=args.threads) as engine:
        files = write_scenes(Path(name), args.images, args.objects)
        other = OtherHandler(args.stock.resolve(), engine) if args.stock else None
        handler, cli = Way("llama_cpp handler"), Way("llama-mtmd-cli")
        ways += [handler] if other else []
        ways += [cli] if args.stock and args.mtmd_cli else []
        tokens = args.tokens or 64
        if args.tokens:
            engine.vocab.ends = lambda token: False  # type: ignore[method-assign]
        run_library(engine, Way("warm-up"), files[:2], 1, None)
        for part in np.array_split(np.arange(len(files)), args.rounds):
            block = [files[i] for i in part]
            run_library(engine, full, block, 1, None, tokens)
            run_library(engine, wide, block, args.parallel, args.budget, tokens)
            run_library(engine, small, block, 1, args.budget, tokens)
            if other:
                other.run(handler, block)
            if cli in ways:
                run_cli(args.mtmd_cli.resolve(), args.stock.resolve(), engine, cli, block)
            print(f"{len(full.texts)}/{len(files)}", file=sys.stderr)
        n = len(files)
        report: dict[str, Any] = {"images": n, "threads": args.threads, "prompt": PROMPT}
        report["ways"] = {way.name: way.report(n) for way in ways}
        report["speed_up"] = {
            "wall": round(sum(full.wall) / sum(wide.wall), 3),
            "cpu": round(sum(full.cpu) / sum(wide.cpu), 3),
        }
        report["against"] = {
            way.name: {
                "wall": round(sum(way.wall) / sum(full.wall), 3),
                "cpu": round(sum(way.cpu) / sum(full.cpu), 3),
                "same_captions": sum(way.texts[k] == full.texts[k] for k in full.texts),
            }
            for way in ways[3:]
        }
        report["captions"] = differences(engine, args.budget, small, wide)
        if args.auto:
            report["auto"] = auto_parallel(engine)
        if other:
            other.close()
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
