"""Caption a folder and show how it goes; run it again after an interruption and it goes on.

python examples/caption_folder.py photos [prompt]
"""

from __future__ import annotations

import sys

from ecokv_local import EvictionConfig
from ecokv_local.caption import caption
from ecokv_local.errors import EcokvError


def main() -> int:
    folder, *rest = sys.argv[1:]
    prompt = rest[0] if rest else "Describe the image."
    failed = 0
    for result in caption([folder], prompt=prompt, eviction=EvictionConfig(budget=64)):
        if result.error is not None:
            failed += 1
            print(f"{result.path}: {result.error.message}", file=sys.stderr)
        else:
            print(f"{result.path}: {result.caption}")
    return 3 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except EcokvError as error:
        sys.exit(f"{error.message}\n{error.hint}")
