"""Every setting of every command, declared once.

A `Setting` is a flag, an environment variable and a key of `ecokv.toml` at the same time. Commands
name the groups they take; nothing about a setting is written anywhere else.
"""

from __future__ import annotations

from ecokv_cli import values
from ecokv_cli.batch_options import BATCH
from ecokv_cli.bench_options import BENCH_OWN
from ecokv_cli.eval_options import ANALYZE_OWN, EVAL, EXPLAIN_OWN
from ecokv_cli.setting import Setting, group, switch

_count = values.integer

MODEL = group(
    "Model",
    Setting(
        "model",
        ("-m", "--model"),
        "FILE",
        "GGUF model. Without it, the built-in model of the demo extra.",
        values.path,
        is_path=True,
    ),
    Setting(
        "hf_repo",
        ("-hf", "--hf-repo"),
        "USER/REPO[:QUANT]",
        "Model from a Hugging Face repository, with its projector if it has one.",
        values.repo,
    ),
    Setting(
        "mmproj",
        ("--mmproj",),
        "FILE",
        "Projector (mmproj) that lets the model see.",
        values.path,
        is_path=True,
    ),
    Setting(
        "lora",
        ("--lora",),
        "FILE",
        "LoRA adapter; repeatable.",
        values.path,
        many=True,
        is_path=True,
    ),
    switch("offline", ("--offline",), "--online", "Never use the network."),
)

PROMPT = group(
    "Prompt",
    Setting(
        "image",
        ("-a", "--image"),
        "PATH",
        "Picture to look at; repeatable; - reads one from standard input.",
        values.path,
        many=True,
        is_path=True,
    ),
    Setting(
        "prompt",
        ("-p", "--prompt"),
        "TEXT",
        "Question; - reads it from standard input.",
        values.text,
    ),
    Setting("system", ("-s", "--system"), "TEXT", "System prompt.", values.text),
    Setting(
        "image_max_tokens",
        ("--image-max-tokens",),
        "N",
        "Most tokens one picture may take, for models with variable resolution.",
        _count(1, like="256"),
    ),
)

SESSION = group(
    "Prompt",
    Setting(
        "session",
        ("--session",),
        "FILE",
        "Go on from a session that /save or `ecokv read` wrote; the file is not changed.",
        values.path,
        is_path=True,
    ),
)

RUNTIME = group(
    "Run",
    Setting(
        "ctx_size",
        ("-c", "--ctx-size"),
        "N",
        "Context: how many positions; 0 is the model's own.",
        _count(0, like="4096"),
    ),
    Setting(
        "max_tokens",
        ("-n", "--max-tokens"),
        "N",
        "Longest answer in tokens; -1 is until the model ends it.",
        _count(1, also=(-1,), like="256"),
    ),
    Setting(
        "batch_size", ("-b", "--batch-size"), "N", "Tokens per call [512].", _count(1, like="512")
    ),
    Setting(
        "ubatch_size",
        ("-ub", "--ubatch-size"),
        "N",
        "Tokens per graph evaluation [512].",
        _count(1, like="512"),
    ),
    Setting("threads", ("-t", "--threads"), "N", "CPU threads.", _count(1, 1024, like="4")),
    Setting(
        "gpu_layers",
        ("-ngl", "--gpu-layers", "--n-gpu-layers"),
        "N|auto|all",
        "Layers on the GPU [auto].",
        values.gpu_layers,
    ),
    Setting(
        "flash_attn",
        ("-fa", "--flash-attn"),
        "on|off|auto",
        "Flash attention [auto].",
        values.choice("auto", "on", "off"),
    ),
    Setting(
        "cache_type_k",
        ("-ctk", "--cache-type-k"),
        "TYPE",
        f"Type of the K cache [f16]: {', '.join(values.CACHE_TYPES)}.",
        values.choice(*values.CACHE_TYPES),
    ),
    Setting(
        "cache_type_v",
        ("-ctv", "--cache-type-v"),
        "TYPE",
        "Type of the V cache [f16].",
        values.choice(*values.CACHE_TYPES),
    ),
)

SAMPLING = group(
    "Sampling",
    Setting(
        "temp", ("--temp",), "T", "Temperature; 0 is greedy [0].", values.number(0, like="0.7")
    ),
    Setting(
        "top_k", ("--top-k",), "K", "Keep the K likeliest; 0 is off [40].", _count(0, like="40")
    ),
    Setting(
        "top_p",
        ("--top-p",),
        "P",
        "Keep the likeliest up to P [0.95].",
        values.number(0, 1, like="0.95"),
    ),
    Setting(
        "min_p",
        ("--min-p",),
        "P",
        "Drop what is less than P times the likeliest [0.05].",
        values.number(0, 1, like="0.05"),
    ),
    Setting(
        "seed",
        ("--seed",),
        "N",
        "Seed of the sampler; -1 is a new one each time.",
        _count(0, 2**32 - 1, also=(-1,), like="42"),
    ),
)

EVICTION = group(
    "Eviction",
    Setting(
        "budget",
        ("--budget", "--max-kv-size"),
        "N|N%|NMiB",
        "KV pairs kept per layer and KV head, as a number, percent of the prompt, or bytes. "
        "Without it the cache is full.",
        values.budget,
    ),
    Setting("policy", ("--policy",), "NAME", "What decides who stays [ecokv].", values.policy),
    Setting("sinks", ("--sinks",), "N", "First tokens that always stay.", _count(0, like="4")),
    Setting("recent", ("--recent",), "N", "Last tokens that always stay.", _count(0, like="8")),
    Setting("window", ("--window",), "N", "Last queries that vote [8].", _count(1, 1024, like="8")),
    Setting(
        "slack",
        ("--slack",),
        "N",
        "Tokens the cache may grow past the budget before it is evicted again [64].",
        _count(1, like="64"),
    ),
    Setting(
        "image_budget",
        ("--image-budget",),
        "N|N%",
        "KV pairs that every image keeps at least: a number, or percent of its tokens.",
        values.image_budget,
    ),
    Setting(
        "protect",
        ("--protect",),
        "NAMES",
        "Texts that stay whole: system, question, both with a comma, or none [none].",
        values.protect,
    ),
    Setting(
        "prefill",
        ("--prefill",),
        "auto|whole|chunked",
        "Read the prompt whole and evict once; or evict whenever the budget and a micro-batch are "
        "full, whatever the length; auto: whole if there is memory for it [auto].",
        values.prefill,
    ),
)

OUTPUT = group(
    "Output",
    switch("json", ("--json",), "--no-json", "One JSON object per answer."),
    switch("no_stream", ("--no-stream",), "--stream", "Print the answer when it is complete."),
    switch("stats", ("--stats",), "--no-stats", "Print what ran, measured, after each answer."),
    switch("verbose", ("-v", "--verbose"), "--no-verbose", "Tell more, llama.cpp's log included."),
    switch("quiet", ("-q", "--quiet"), "--no-quiet", "No progress and no notes; warnings stay."),
)

ALL: tuple[Setting, ...] = (*MODEL, *PROMPT, *SESSION, *RUNTIME, *SAMPLING, *EVICTION, *OUTPUT)
_EVERY = (*ALL, *BATCH, *EVAL, *EXPLAIN_OWN, *ANALYZE_OWN, *BENCH_OWN)
BY_NAME: dict[str, Setting] = {setting.name: setting for setting in _EVERY}
BY_KEY: dict[str, Setting] = {key: setting for setting in _EVERY for key in setting.keys}
