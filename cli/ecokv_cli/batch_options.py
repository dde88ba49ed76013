"""Settings of `ecokv caption` alone."""

from __future__ import annotations

from ecokv_cli import values
from ecokv_cli.setting import Setting, group, switch

_count = values.integer

BATCH_INPUT = group(
    "Pictures",
    switch("recursive", ("-r", "--recursive"), "--no-recursive", "Folders in folders too."),
    Setting(
        "glob",
        ("--glob",),
        "PATTERN",
        "Which files of a folder are pictures, such as '*.png'; repeatable.",
        values.text,
        many=True,
    ),
    Setting(
        "filelist",
        ("--filelist",),
        "FILE|-",
        "List of pictures: a path a line, or JSON lines with image and prompt; - is stdin.",
        values.path,
        is_path=True,
    ),
    switch(
        "include_hidden",
        ("--include-hidden",),
        "--no-include-hidden",
        "Files and folders that begin with a dot too.",
    ),
    Setting(
        "max_pixels",
        ("--max-pixels",),
        "N",
        "Largest picture, width times height [64000000].",
        _count(1, like="100000000"),
    ),
    switch(
        "allow_truncated",
        ("--allow-truncated",),
        "--no-allow-truncated",
        "Caption pictures whose file ends early.",
    ),
    Setting(
        "frame",
        ("--frame",),
        "N",
        "Which frame of an animation, from 0 [0].",
        _count(0, like="0"),
    ),
)

BATCH_PROMPT = group(
    "Prompt",
    Setting(
        "prompt_file",
        ("--prompt-file",),
        "FILE",
        "File with one prompt, or a JSON list to choose from, with weights.",
        values.path,
        is_path=True,
    ),
    Setting(
        "prompt_seed",
        ("--prompt-seed",),
        "N",
        "Seed of the choice among the prompts of a list [0].",
        _count(0, like="0"),
    ),
    Setting("prepend", ("--prepend",), "TEXT", "Put before every caption.", values.text),
    Setting("append", ("--append",), "TEXT", "Put after every caption.", values.text),
    Setting(
        "schema",
        ("--schema", "--json-schema-file"),
        "FILE",
        "JSON schema that every caption follows.",
        values.path,
        is_path=True,
    ),
    Setting(
        "grammar",
        ("--grammar-file",),
        "FILE",
        "Grammar (GBNF) that every caption follows.",
        values.path,
        is_path=True,
    ),
)

BATCH_OUTPUT = group(
    "Captions",
    Setting("extension", ("--extension",), ".EXT", "End of the caption files [.txt].", values.text),
    Setting(
        "existing",
        ("--existing",),
        "skip|overwrite|append|prepend",
        "What to do with captions that are there [skip].",
        values.choice("skip", "overwrite", "append", "prepend"),
    ),
    Setting(
        "sidecar_name",
        ("--sidecar-name",),
        "stem|full",
        "a.txt or a.jpg.txt for a.jpg [stem].",
        values.choice("stem", "full"),
    ),
    Setting(
        "output",
        ("-o", "--output"),
        "FILE",
        "All captions in one .jsonl or .csv file; repeatable. No caption files then, "
        "unless --sidecar.",
        values.path,
        many=True,
        is_path=True,
    ),
    switch("sidecar", ("--sidecar",), "--no-sidecar", "A caption file for each picture."),
    Setting(
        "manifest",
        ("--manifest",),
        "FILE",
        "Where the state of the batch is kept [.ecokv-caption.jsonl beside the pictures].",
        values.path,
        is_path=True,
    ),
    switch(
        "retry_failed",
        ("--retry-failed",),
        "--no-retry-failed",
        "Try pictures again that failed before.",
    ),
    Setting(
        "changed",
        ("--changed",),
        "ask|keep|redo",
        "What to do with captions that were made with other settings [ask].",
        values.choice("ask", "keep", "redo"),
    ),
    switch(
        "dry_run",
        ("--dry-run",),
        "--no-dry-run",
        "List what would happen, with tokens, memory and time; caption nothing.",
    ),
    Setting(
        "parallel",
        ("-np", "--parallel"),
        "N|auto",
        "Pictures at a time [auto].",
        values.parallel,
    ),
)

BATCH: tuple[Setting, ...] = (*BATCH_INPUT, *BATCH_PROMPT, *BATCH_OUTPUT)
