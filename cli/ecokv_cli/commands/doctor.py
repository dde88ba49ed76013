"""`ecokv doctor`: what is installed, built in and usable here."""

from __future__ import annotations

import os
from dataclasses import asdict

from ecokv_cli.errors import OK
from ecokv_cli.options import OUTPUT
from ecokv_cli.output import Output, visible
from ecokv_cli.setting import chosen
from ecokv_cli.settings import Settings, project_file, state_folder, user_file

NAME = "doctor"
GROUPS = chosen(
    OUTPUT, {"json": {"help": "One JSON object."}}, ("no_stream", "stats", "verbose", "quiet")
)
ARGUMENT = None
HELP = """Tell what is built in and whether it can be used here.

Libraries, llama.cpp, CPU and GPU features, memory, the built-in model, extras and settings. Ends
with 4 if the libraries or the built-in model cannot be used; every problem comes with a hint.
"""
EPILOG = ""

#: As for a model that cannot be used.
_UNUSABLE = 4


def run(settings: Settings, out: Output, argument: None) -> int:
    """Look at everything; returns the exit code."""
    from ecokv_local import diagnosis

    found = diagnosis.diagnose()
    found.append(diagnosis.folder("state", state_folder()))
    files = [str(file) for file in (user_file(os.environ), project_file()) if file is not None]
    found.append(diagnosis.Finding("settings", ", ".join(files) or "no ecokv.toml"))
    set_here = sorted(name for name in os.environ if name.startswith("ECOKV_"))
    found.append(diagnosis.Finding("environment", " ".join(set_here) or "no ECOKV_ variable"))
    ok = all(finding.ok for finding in found)
    if out.as_json:
        out.record({"ok": ok, "findings": [asdict(finding) for finding in found]})
        return OK if ok else _UNUSABLE
    width = max(len(finding.name) for finding in found)
    for finding in found:
        mark = "" if finding.ok else "PROBLEM: "
        print(visible(f"{finding.name.ljust(width)}  {mark}{finding.value}"))
        if finding.hint:
            print(visible(f"{'':{width}}  hint: {finding.hint}"))
    return OK if ok else _UNUSABLE
