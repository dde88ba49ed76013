"""Text out of the bytes of tokens, one character at a time.

A character can be spread over several tokens. Bytes of an unfinished one are held back until the
rest arrives, so that a whole character never shows as U+FFFD.
"""

from __future__ import annotations

import codecs


class Utf8Decoder:
    """Incremental UTF-8 decoder.

    Broken bytes become U+FFFD (one for each longest broken part, as ``bytes.decode`` does it);
    an unfinished character at the end becomes one only in :meth:`flush`.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, data: bytes) -> str:
        """Add the bytes of one token.

        Args:
            data: any number of bytes, also none.

        Returns:
            The characters that are complete by now, maybe "".
        """
        return self._decoder.decode(data)

    def flush(self) -> str:
        """End of the text.

        Returns:
            "" when every character was whole, U+FFFD for an unfinished one. The decoder can be
            used again after this.
        """
        tail = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return tail

    @property
    def pending(self) -> bytes:
        """The bytes held back, 0 to 3 of them."""
        return self._decoder.getstate()[0]
