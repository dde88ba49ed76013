"""Pictures and pages: figures by matplotlib, self-contained HTML. Needs the extra ``report``."""

from ecokv_local.report.figure import (
    new_figure,
    require_place,
    require_report,
    save_png,
    to_png,
    to_svg,
)
from ecokv_local.report.page import Page

__all__ = ["Page", "new_figure", "require_place", "require_report", "save_png", "to_png", "to_svg"]
