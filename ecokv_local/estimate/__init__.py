"""What a conversation would take, by the headers of the files alone: nothing is loaded."""

from ecokv_local.estimate.images import image_tokens
from ecokv_local.estimate.memory import Estimate, estimate

__all__ = ["Estimate", "estimate", "image_tokens"]
