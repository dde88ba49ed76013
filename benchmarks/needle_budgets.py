"""Accuracy on a question about one of several images, by budget and by what is kept of each image.

    python benchmarks/needle_budgets.py --images 4 --items 60
    python benchmarks/needle_budgets.py --images 4 --items 20 --prefill chunked

Generated scenes of the validation split, greedy, exact match, the built-in model. Every variant
sees the same items. `whole`: the prompt is read once, evicted once. `chunked`: images are read one
by one, and what is above the budget is evicted after each, when the question is not known yet.
"""

from __future__ import annotations

import argparse
import ctypes as c
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ecokv_local import Engine, EvictionConfig, Message
from ecokv_local.errors import BudgetError
from ecokv_local.evaluate.scenes import needle, score
from ecokv_local.fork import restore_rows, save_rows
from ecokv_local.groups import Texts, check_fits, spans_of
from ecokv_local.images import ImageInput, load_image
from ecokv_local.parallel_cache import Streams
from ecokv_local.projector import Chunk
from ecokv_local.prompt import MEDIA_MARKER

KEEP: dict[str, dict[str, Any]] = {
    "-": {},
    "image-budget 5%": {"image_budget": "5%"},
    "image-budget 10%": {"image_budget": "10%"},
    "protect question": {"protect": "question"},
}


class Reader:
    """One sequence; the images of an item are encoded once, and in `whole` also read once."""

    def __init__(self, engine: Engine, n_ctx: int, policy: str) -> None:
        self.engine, self.policy = engine, policy
        config = EvictionConfig(policy, budget=64)
        self.streams = Streams(engine, 1, n_ctx, config, threads=engine.threads)
        self.streams.context.set_adapters(engine.adapters(seeing=True))
        self.stream = self.streams.all[0]
        self.template = engine.chat_template()
        assert engine.projector is not None
        self._encode, self._encoded = engine.projector.encode, dict[int, Any]()
        engine.projector.encode = self._once  # type: ignore[method-assign]

    def _once(self, chunk: Chunk) -> Any:
        key = c.cast(chunk.handle, c.c_void_p).value or 0
        if key not in self._encoded:
            self._encoded[key] = self._encode(chunk)
        return self._encoded[key]

    def item(
        self, case: Any, budgets: Sequence[str], keeps: Sequence[str], *, chunked: bool
    ) -> dict[tuple[str, str], float | None]:
        """Scores by (budget, what is kept); None where that is refused."""
        engine, stream = self.engine, self.stream
        projector = engine.projector
        assert projector is not None
        asked = case.question.question
        inputs = tuple(ImageInput(scene.image, "scene") for scene in case.scenes)
        text = self.template.render([Message("user", asked, inputs)]).text
        loaded = [load_image(scene.image) for scene in case.scenes]
        found: dict[tuple[str, str], float | None] = {}
        with projector.chunks(text.split(MEDIA_MARKER), loaded, add_special=False) as chunks:
            spans = spans_of(engine.vocab, text, chunks, 0, Texts("", asked))
            stream.clear()
            self._encoded.clear()
            self._read(chunks[:-1])
            prefix = save_rows(stream)
            for budget in ("full", *budgets):
                for name in keeps if budget != "full" else ["-"]:
                    config = None
                    if budget != "full":
                        config = EvictionConfig(self.policy, budget=budget, **KEEP[name])
                        n_prompt = sum(chunk.n_tokens for chunk in chunks)
                        pairs = config.pairs(n_prompt, 1)
                        try:
                            check_fits(config, pairs, spans)
                        except BudgetError:
                            found[budget, name] = None
                            continue
                    stream.clear()
                    if chunked and config is not None:
                        stream.spans = spans
                        self._read(chunks[:-1], config, pairs)
                    else:
                        restore_rows(stream, prefix)
                    stream.spans = spans
                    stream.decode(chunks[-1].tokens)
                    if config is not None:
                        stream.evict(config, pairs)
                    found[budget, name] = score(case.question, self._generate())
        return found

    def _read(
        self, chunks: Sequence[Chunk], config: EvictionConfig | None = None, pairs: int = 0
    ) -> None:
        projector = self.engine.projector
        assert projector is not None
        for chunk in chunks:
            if chunk.is_image:
                projector.read_image(chunk, self.stream)
            else:
                self.stream.decode(chunk.tokens)
            if config is not None and self.stream.n_rows > pairs:
                self.stream.evict(config, pairs)

    def _generate(self, limit: int = 24) -> str:
        stream, vocab = self.stream, self.engine.vocab
        said = b""
        for _ in range(limit):
            token = int(stream.logits().argmax())
            if vocab.ends(token):
                break
            said += vocab.piece(token)
            stream.decode([token])
        return said.decode("utf-8", "replace")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-m", "--model", type=Path, default=None)
    parser.add_argument("--mmproj", type=Path, default=None)
    parser.add_argument("--images", type=int, default=4)
    parser.add_argument("--items", type=int, default=60)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--minutes", type=float, default=1e9, help="stop after so many")
    parser.add_argument("--budgets", nargs="+", default=["5%", "10%", "20%", "50%"])
    parser.add_argument("--keep", nargs="+", default=list(KEEP), choices=list(KEEP))
    parser.add_argument("--prefill", choices=["whole", "chunked"], default="whole")
    parser.add_argument("--policy", default="ecokv")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()

    found: dict[tuple[str, str], list[float | None]] = {}
    started, n = time.perf_counter(), 0
    with Engine(args.model, args.mmproj, threads=args.threads) as engine:
        reader = Reader(engine, 256 * args.images + 256, args.policy)
        for seed in range(args.first, args.first + args.items):
            if time.perf_counter() - started > args.minutes * 60:
                break
            case = needle(seed, args.images, "validation")
            chunked = args.prefill == "chunked"
            for key, value in reader.item(case, args.budgets, args.keep, chunked=chunked).items():
                found.setdefault(key, []).append(value)
            n += 1
            print(f"\r{n}/{args.items}", end="", file=sys.stderr)
        reader.streams.close()
    print(file=sys.stderr)
    report: dict[str, Any] = {"images": args.images, "items": n, "prefill": args.prefill}
    for (budget, name), values in found.items():
        right = [v for v in values if v is not None]
        text = f"{sum(right) / len(right):.3f}" if right else "refused"
        if 0 < len(right) < n:
            text += f" ({len(right)} items)"
        report[f"{budget}, {name}"] = text
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
