"""Generated pictures with exact truth, and questions about them."""

from __future__ import annotations

from .needle import Needle, needle
from .questions import KINDS, Question, describe, is_correct, questions, score
from .render import FIGURE_KINDS, SCENE_KINDS, SPLITS, Scene, SceneObject, scene

__all__ = [
    "FIGURE_KINDS",
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
