"""Accuracy of a vision model by kind of question, full cache, greedy, exact match.

    python benchmarks/vision_kinds.py --scenes 1000 --needles 200

Every scene is asked `--per-scene` questions, of the kinds that were asked least so far among those
that it answers; the image is read once and the cache is rolled back to it for each question.
`describe` counts the share of objects named. `needle` asks
for a number in one of four images. Through the library: the same chunks, adapters and template as a
session has. Intervals are Wilson's, 95 %.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from ecokv_local import Engine, Message
from ecokv_local.evaluate.scenes import KINDS, needle, questions, scene, score
from ecokv_local.images import ImageInput, load_image
from ecokv_local.prompt import MEDIA_MARKER, ChatTemplate


class Reader:
    """Answers several questions about the same images, which are read once."""

    def __init__(self, engine: Engine, n_ctx: int) -> None:
        self.engine = engine
        self.context = engine.context(n_ctx)
        self.context.set_adapters(engine.adapters(seeing=True))
        vocab = engine.vocab
        self.template = ChatTemplate(
            engine.meta.chat_template,
            name=engine.model_path.name,
            bos_token=vocab.text_of("bos"),
            eos_token=vocab.text_of("eos"),
        )

    def answers(self, images: Sequence[Image.Image], asked: Sequence[str]) -> list[str]:
        """Greedy answers."""
        projector, context = self.engine.projector, self.context
        assert projector is not None
        context.clear()
        loaded = [load_image(image) for image in images]
        inputs = tuple(ImageInput(image, "scene") for image in images)
        replies = []
        mark = None
        for question in asked:
            text = self.template.render([Message("user", question, inputs)]).text
            with projector.chunks(text.split(MEDIA_MARKER), loaded, add_special=False) as chunks:
                if mark is None:
                    for chunk in chunks[:-1]:
                        if chunk.is_image:
                            projector.read_image(chunk, context)
                        else:
                            context.decode(chunk.tokens)
                    mark = context.mark()
                assert context.rollback(mark)
                replies.append(self._generate(chunks[-1].tokens))
        return replies

    def _generate(self, tokens: Sequence[int], limit: int = 64) -> str:
        context, vocab = self.context, self.engine.vocab
        said = b""
        for _ in range(limit):
            context.decode(tokens)
            token = int(context.logits().argmax())
            if vocab.ends(token):
                break
            said += vocab.piece(token)
            tokens = [token]
        return said.decode("utf-8", "replace")


def wilson(right: float, n: int, z: float = 1.96) -> tuple[float, float]:
    """95 % interval of a share."""
    share, half = right / n, z * np.sqrt(right / n * (1 - right / n) / n + z**2 / (4 * n**2))
    scale = 1 + z**2 / n
    centre = share + z**2 / (2 * n)
    return round((centre - half) / scale, 4), round((centre + half) / scale, 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-m", "--model", type=Path, default=None)
    parser.add_argument("--mmproj", type=Path, default=None)
    parser.add_argument("--lora", type=Path, action="append", default=[])
    parser.add_argument("--scenes", type=int, default=1000)
    parser.add_argument("--per-scene", type=int, default=2, help="questions")
    parser.add_argument("--needles", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--split", default="test", choices=["validation", "test"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="JSON lines of every answer")
    args = parser.parse_args()

    found: dict[str, list[float]] = defaultdict(list)
    lines = []
    started = time.perf_counter()
    with Engine(args.model, args.mmproj, lora=args.lora, threads=args.threads) as engine:
        reader = Reader(engine, 2048)

        def ask(images: list[Image.Image], asked: list, seed: int) -> None:
            replies = reader.answers(images, [q.question for q in asked])
            for question, reply in zip(asked, replies, strict=True):
                found[question.kind].append(score(question, reply))
                lines.append([seed, question.kind, question.question, question.answer, reply])

        for seed in range(args.first, args.first + args.scenes):
            item = scene(seed, args.split)
            one_each = {q.kind: q for q in questions(item, np.random.default_rng([seed, 77]))}
            rare = sorted(one_each, key=lambda kind: len(found[kind]))
            ask([item.image], [one_each[kind] for kind in rare[: args.per_scene]], seed)
            print(f"\rscene {seed}", end="", file=sys.stderr)
        for seed in range(args.first, args.first + args.needles):
            case = needle(seed, 4, args.split)
            ask([item.image for item in case.scenes], [case.question], seed)
            print(f"\rneedle {seed}", end="", file=sys.stderr)
    print(file=sys.stderr)
    report: dict[str, object] = {"split": args.split, "scenes": args.scenes}
    report["seconds"] = round(time.perf_counter() - started)
    for kind in KINDS:
        if found[kind]:
            n, right = len(found[kind]), float(sum(found[kind]))
            report[kind] = {"n": n, "accuracy": round(right / n, 4), "interval": wilson(right, n)}
    print(json.dumps(report, indent=2))
    if args.out:
        args.out.write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()
