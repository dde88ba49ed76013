"""Generated pictures with exact truth, and questions about them."""

from __future__ import annotations

from .needle import Needle, needle
from .questions import KINDS, Question, describe, is_correct, questions, score
from .render import SCENE_KINDS, SPLITS, Scene, SceneObject, scene

__all__ = [
    "KINDS",
    "SCENE_KINDS",
    "SPLITS",
    "Needle",
    "Question",
    "Scene",
    "SceneObject",
    "describe",
    "is_correct",
    "needle",
    "questions",
    "scene",
    "score",
]
