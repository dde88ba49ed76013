"""Write the generated part of the documentation, or check that it is up to date.

python tools/docs.py            # write docs/help.md
python tools/docs.py --check    # exit 1 if a file would change
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HELP = ROOT / "docs" / "help.md"
HEAD = """\
# Help

What `--help` prints, written by `tools/docs.py`. Change the program, not this file.
"""


def help_page() -> str:
    """`docs/help.md`: the help of the program and of each of its commands."""
    from ecokv_cli.app import app

    names = [command.name for command in app.registered_commands if command.name]
    pages = [([], "ecokv"), *(([name], f"ecokv {name}") for name in names)]
    return "\n".join([HEAD, *(_section(title, arguments) for arguments, title in pages)])


def _section(title: str, arguments: list[str]) -> str:
    text = "\n".join(line.rstrip() for line in _help(arguments).strip().splitlines())
    return f"## {title}\n\n```text\n$ {title} --help\n{text}\n```\n"


def _help(arguments: list[str]) -> str:
    from ecokv_cli.main import main

    os.environ["COLUMNS"] = "102"
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        main([*arguments, "--help"])
    return text.getvalue()


def main(arguments: list[str]) -> int:
    """Write or check; returns the exit code."""
    sys.path[:0] = [str(ROOT), str(ROOT / "cli")]
    page = help_page()
    if HELP.is_file() and HELP.read_text(encoding="utf-8") == page:
        return 0
    name = HELP.relative_to(ROOT)
    if "--check" in arguments:
        print(f"{name} is not up to date: run python tools/docs.py", file=sys.stderr)
        return 1
    HELP.write_text(page, encoding="utf-8")
    print(f"wrote {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
