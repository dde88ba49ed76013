"""Settings of `ecokv bench` alone."""

from __future__ import annotations

from typing import Any

from ecokv_cli import values
from ecokv_cli.eval_options import EVAL, listed
from ecokv_cli.setting import Setting, chosen, group

_count = values.integer
_SHARED = ("policies", "budgets", "cache_types")
_OWN = {
    "policies": {"help": "Policies, with settings behind colons [ecokv].", "group": "Benchmark"},
    "budgets": {
        "help": "Budgets: 128,25%,2MiB [128,512, if the model can be evicted].",
        "group": "Benchmark",
    },
    "cache_types": {"group": "Benchmark"},
}
_TYPES = listed(values.choice(*values.CACHE_TYPES))
#: Settings that other commands have too, as this one reads them.
BENCH_WORDS: dict[str, dict[str, Any]] = {
    "cache_type_k": {
        "metavar": "LIST",
        "help": "Types of the K cache, each measured with each of the V cache [f16].",
        "parse": _TYPES,
    },
    "cache_type_v": {
        "metavar": "LIST",
        "help": "Types of the V cache [f16].",
        "parse": _TYPES,
    },
}

BENCH_OWN = group(
    "Benchmark",
    Setting(
        "depths",
        ("-d", "--depths"),
        "LIST",
        "Tokens in the cache when decoding is measured [512,1024,4096].",
        listed(_count(16, like="512,1024")),
    ),
    Setting(
        "repetitions", ("-r", "--repetitions"), "N", "Repetitions [5].", _count(1, 1000, like="5")
    ),
    Setting(
        "output_format",
        ("-o", "--output-format"),
        "md|csv|json|jsonl",
        "How the rows are printed [md].",
        values.choice("md", "csv", "json", "jsonl"),
    ),
    Setting(
        "compare_stock",
        ("--compare-stock",),
        "DIR",
        "Folder of unpatched libraries of the same pin, measured side by side with the full cache.",
        values.path,
        is_path=True,
    ),
    Setting("plot", ("--plot",), "FILE.png", "Curves as a picture.", values.path, is_path=True),
    Setting(
        "html", ("--html",), "FILE.html", "Curves and rows as a page.", values.path, is_path=True
    ),
)
BENCH = (
    *chosen([setting for setting in EVAL if setting.name in _SHARED], _OWN),
    *BENCH_OWN,
)
