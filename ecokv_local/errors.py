"""One family of errors. Each names the value that was wrong and what to do next."""

from __future__ import annotations

from typing import ClassVar


class EcokvError(Exception):
    """Base of every error of this package.

    ``code`` is a stable word for programs, ``message`` names the file or flag and the value,
    ``hint`` says what to try next, ``exit_code`` is what the command line ends with.
    """

    code: ClassVar[str] = "failure"
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def to_dict(self) -> dict[str, str]:
        """``{"code", "type", "message", "hint"}``, the shape of ``--json``."""
        return {
            "code": self.code,
            "type": type(self).__name__,
            "message": self.message,
            "hint": self.hint,
        }


class UsageError(EcokvError):
    """A flag, setting or argument has a value that cannot work."""

    code = "usage"
    exit_code = 2


class ModelError(EcokvError):
    """A model, projector or adapter file is missing, damaged, unfitting or of an unsupported
    kind.
    """

    code = "model"
    exit_code = 4


class BuildError(ModelError):
    """The native libraries are missing or do not belong to this version of the package."""

    code = "build"


class TemplateError(ModelError):
    """The model's chat template cannot render this conversation."""

    code = "template"


class ImageError(EcokvError):
    """An image could not be read, or did not reach the model."""

    code = "image"


class StateError(EcokvError):
    """The call does not fit the state of the session (closed, nothing to regenerate, ...)."""

    code = "state"


class SessionFileError(EcokvError):
    """A saved session is missing, damaged, of a newer version, or of another model or cache."""

    code = "session"


class MemoryLimitError(EcokvError):
    """Out of memory."""

    code = "out_of_memory"
    exit_code = 5


class BudgetError(EcokvError):
    """The budget is smaller than what has to stay."""

    code = "budget"
    exit_code = 5


class ContextFullError(EcokvError):
    """The prompt needs more cells than the cache has."""

    code = "context_full"
    exit_code = 5
