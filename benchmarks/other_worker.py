"""llama_cpp's Llama object with its mtmd chat handler on unpatched libraries, one image at a time.

Started with a job as JSON; reads lists of image files, one a line, and answers what it said and the
time it took. Uses nothing of this package.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import tempfile
import time
from pathlib import Path


def libraries(stock: Path) -> Path:
    """One folder with the stock libllama and everything that is the same in both builds."""
    folder = Path(tempfile.mkdtemp(prefix="stock-"))
    for source in (stock.parent, stock):
        for path in source.glob("lib*"):
            link = folder / path.name
            link.unlink(missing_ok=True)
            link.symlink_to(path)
    return folder


def main() -> None:
    job = json.loads(sys.argv[1])
    folder = libraries(Path(job["stock"]))
    if os.environ.get("LD_LIBRARY_PATH", "").split(":")[0] != job["stock"]:
        # libmtmd would find the patched libllama beside its real file
        os.environ["LD_LIBRARY_PATH"] = f"{job['stock']}:{Path(job['stock']).parent}"
        os.execv(sys.executable, [sys.executable, *sys.argv])
    os.environ["LLAMA_CPP_LIB_PATH"] = os.environ["MTMD_CPP_LIB"] = str(folder)

    import llama_cpp
    from llama_cpp.llama_chat_format import MTMDChatHandler

    assert not hasattr(llama_cpp.llama_cpp._lib, "llama_ecokv_abi_version"), "the patched library"

    class Handler(MTMDChatHandler):
        """The template of this model takes texts, not lists of parts."""

        @classmethod
        def _convert_message_for_template(cls, message, media_marker):
            result = super()._convert_message_for_template(message, media_marker)
            if isinstance(result["content"], list):
                result["content"] = "\n".join(part["text"] for part in result["content"])
            return result

    llama = llama_cpp.Llama(
        job["model"],
        chat_handler=Handler(job["mmproj"], verbose=False),
        lora_path=job["lora"][0] if job["lora"] else None,
        n_ctx=1024,
        n_threads=job["threads"],
        n_threads_batch=job["threads"],
        verbose=False,
    )

    def caption(path: str) -> str:
        data = base64.b64encode(Path(path).read_bytes()).decode()
        content = [
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}},
            {"type": "text", "text": job["prompt"]},
        ]
        answer = llama.create_chat_completion(
            [{"role": "user", "content": content}], temperature=0, max_tokens=64
        )
        return answer["choices"][0]["message"]["content"]

    for line in sys.stdin:
        files = json.loads(line)
        wall, cpu = time.perf_counter(), time.process_time()
        texts = {path: caption(path) for path in files}
        result = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
        print(json.dumps({"texts": texts} | result), flush=True)


if __name__ == "__main__":
    main()
