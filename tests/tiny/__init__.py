"""Tiny models with random weights, written as GGUF files in a fraction of a second.

They say nothing sensible, but they are whole: the pinned llama.cpp loads them, tokenises any bytes
with them and runs every kind of layer. The same arguments give the same file, byte for byte.
"""

from .language import tiny_gemma3, tiny_llama, tiny_long, tiny_mamba, tiny_qwen2vl
from .vision import tiny_gemma3_mmproj, tiny_idefics3_mmproj, tiny_mmproj, tiny_qwen2vl_mmproj
from .vocab import CHATML, TILES

__all__ = [
    "CHATML",
    "TILES",
    "tiny_gemma3",
    "tiny_gemma3_mmproj",
    "tiny_idefics3_mmproj",
    "tiny_llama",
    "tiny_long",
    "tiny_mamba",
    "tiny_mmproj",
    "tiny_qwen2vl",
    "tiny_qwen2vl_mmproj",
]
