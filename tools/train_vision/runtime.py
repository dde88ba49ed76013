"""The exported files in llama.cpp, through the plain bindings: embeddings and greedy answers."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

import llama_cpp as lc
import numpy as np
from llama_cpp import mtmd_cpp as mc
from PIL import Image

from .prompts import ANSWER, SYSTEM

_BATCH = 1024


class Runtime:
    """Model, projector and adapter loaded as the engine loads them."""

    def __init__(self, model: Path, mmproj: Path, lora: Path | None, threads: int = 1) -> None:
        lc.llama_backend_init()
        self._quiet = lc.llama_log_callback(lambda *_: None)
        lc.llama_log_set(self._quiet, None)
        mc.mtmd_log_set(self._quiet, None)
        self.model = lc.llama_model_load_from_file(
            str(model).encode(), lc.llama_model_default_params()
        )
        parameters = lc.llama_context_default_params()
        parameters.n_ctx = parameters.n_batch = parameters.n_ubatch = _BATCH
        parameters.n_threads = parameters.n_threads_batch = threads
        self.context = lc.llama_init_from_model(self.model, parameters)
        if lora is not None:
            adapter = lc.llama_adapter_lora_init(self.model, str(lora).encode())
            adapters = (lc.llama_adapter_lora_p_ctypes * 1)(adapter)
            lc.llama_set_adapters_lora(self.context, adapters, 1, (ctypes.c_float * 1)(1.0))
        settings = mc.mtmd_context_params_default()
        settings.use_gpu, settings.n_threads, settings.warmup = False, threads, False
        self.vision = mc.mtmd_init_from_file(str(mmproj).encode(), self.model, settings)
        if not self.vision:
            raise RuntimeError(f"mtmd refuses {mmproj}")
        self.vocabulary = lc.llama_model_get_vocab(self.model)
        self.width = lc.llama_model_n_embd(self.model)

    def chunks(self, text: str, images: Sequence[Image.Image]) -> mc.mtmd_input_chunks_p:
        """Tokenize a prompt with one media marker per image."""
        bitmaps = []
        for image in images:
            data = image.convert("RGB").tobytes()
            buffer = (ctypes.c_uint8 * len(data)).from_buffer_copy(data)
            bitmaps.append(mc.mtmd_bitmap_init(image.width, image.height, buffer))
        found = mc.mtmd_input_chunks_init()
        raw = text.encode()
        wrapped = mc.mtmd_input_text(raw, len(raw), False, True)
        array = (mc.mtmd_bitmap_p_ctypes * len(bitmaps))(*bitmaps)
        code = mc.mtmd_tokenize(self.vision, found, ctypes.byref(wrapped), array, len(bitmaps))
        for bitmap in bitmaps:
            mc.mtmd_bitmap_free(bitmap)
        if code != 0:
            raise RuntimeError(f"mtmd_tokenize returned {code}")
        return found

    def embedding(self, image: Image.Image) -> np.ndarray:
        """Embeddings [tokens, width] of one image."""
        found = self.chunks(mc.mtmd_default_marker().decode(), [image])
        for i in range(mc.mtmd_input_chunks_size(found)):
            chunk = mc.mtmd_input_chunks_get(found, i)
            if mc.mtmd_input_chunk_get_type(chunk) == mc.MTMD_INPUT_CHUNK_TYPE_IMAGE:
                mc.mtmd_encode_chunk(self.vision, chunk)
                tokens = mc.mtmd_input_chunk_get_n_tokens(chunk)
                output = mc.mtmd_get_output_embd(self.vision)
                values = np.ctypeslib.as_array(output, (tokens, self.width)).copy()
        mc.mtmd_input_chunks_free(found)
        return values

    def answers(
        self, images: Sequence[Image.Image], questions: Sequence[str], limit: int = 48
    ) -> list[str]:
        """Greedy answers to questions about the same images, which are read once."""
        memory = lc.llama_get_memory(self.context)
        lc.llama_memory_clear(memory, True)
        marker = mc.mtmd_default_marker().decode()
        # the text after the last image is decoded with the question: the engine tokenizes it so
        found = self.chunks(SYSTEM + "\n".join([marker] * len(images)), images)
        past = lc.llama_pos(0)
        mc.mtmd_helper_eval_chunks(
            self.vision, self.context, found, 0, 0, _BATCH, True, ctypes.byref(past)
        )
        mc.mtmd_input_chunks_free(found)
        replies = []
        for question in questions:
            lc.llama_memory_seq_rm(memory, 0, past.value, -1)
            replies.append(self._generate(self._tokens("\n" + question + ANSWER), limit))
        return replies

    def _generate(self, tokens: list[int], limit: int) -> str:
        size = lc.llama_vocab_n_tokens(self.vocabulary)
        reply: list[int] = []
        while len(reply) < limit:
            array = (lc.llama_token * len(tokens))(*tokens)
            if lc.llama_decode(self.context, lc.llama_batch_get_one(array, len(tokens))) != 0:
                raise RuntimeError("llama_decode failed")
            scores = np.ctypeslib.as_array(lc.llama_get_logits_ith(self.context, -1), (size,))
            token = int(scores.argmax())
            if lc.llama_vocab_is_eog(self.vocabulary, token):
                break
            reply.append(token)
            tokens = [token]
        return self._text(reply)

    def _tokens(self, text: str) -> list[int]:
        raw = text.encode()
        array = (lc.llama_token * (len(raw) + 8))()
        size = lc.llama_tokenize(self.vocabulary, raw, len(raw), array, len(array), False, True)
        return list(array[:size])

    def _text(self, tokens: list[int]) -> str:
        array = (lc.llama_token * max(1, len(tokens)))(*tokens)
        buffer = ctypes.create_string_buffer(1024)
        size = lc.llama_detokenize(
            self.vocabulary, array, len(tokens), buffer, len(buffer), True, False
        )
        return buffer.raw[:size].decode("utf-8", "replace")
