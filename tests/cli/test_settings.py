"""Flags, variables and `ecokv.toml`: who wins, and what a wrong value is told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ecokv_cli.options import ALL
from ecokv_cli.settings import resolve

#: A value that each setting refuses, and one that it takes, as a variable would spell them.
BAD_AND_GOOD = {
    "model": ("http://x/y.gguf", "a.gguf"),
    "hf_repo": ("no-slash", "user/repo:Q4_0"),
    "mmproj": ("https://x/y", "b.gguf"),
    "lora": ("ftp://x", "c.gguf"),
    "offline": ("maybe", "1"),
    "image": ("file:///etc/passwd", "d.png"),
    "prompt": (None, "Hi"),
    "system": (None, "Be brief."),
    "session": ("https://x/y", "talk.ekv"),
    "image_max_tokens": ("0", "64"),
    "ctx_size": ("-1", "512"),
    "max_tokens": ("0", "12"),
    "batch_size": ("many", "64"),
    "ubatch_size": ("1.5", "32"),
    "threads": ("0", "2"),
    "gpu_layers": ("-1", "auto"),
    "flash_attn": ("yes", "off"),
    "cache_type_k": ("q9", "q8_0"),
    "cache_type_v": ("F16", "f16"),
    "temp": ("hot", "0.5"),
    "top_k": ("-1", "3"),
    "top_p": ("1.1", "0.5"),
    "min_p": ("nan", "0.1"),
    "seed": ("-2", "7"),
    "budget": ("0.5", "25%"),
    "policy": ("snapvk", "snapkv"),
    "sinks": ("-1", "2"),
    "recent": ("x", "3"),
    "window": ("0", "5"),
    "slack": ("0", "6"),
    "image_budget": ("0.5", "25%"),
    "protect": ("all", "system,question"),
    "prefill": ("in parts", "chunked"),
    "json": ("2", "0"),
    "no_stream": ("x", "0"),
    "stats": ("x", "0"),
    "verbose": ("x", "0"),
    "quiet": ("x", "0"),
}


def test_the_table_above_is_complete():
    assert set(BAD_AND_GOOD) == {setting.name for setting in ALL}


@pytest.mark.parametrize("setting", ALL, ids=lambda setting: setting.name)
def test_every_setting_is_a_variable(ecokv, engine, monkeypatch, setting):
    bad, good = BAD_AND_GOOD[setting.name]
    for variable in setting.environment:
        if bad is not None:
            monkeypatch.setenv(variable, bad)
            result = ecokv("chat", "Hi" if setting.name != "prompt" else "-n1")
            assert result.code == 2 and result.err.startswith(f"error: {variable}: ")
            assert "\n hint: " in result.err
        monkeypatch.setenv(variable, good)
        found = resolve("chat", ALL, {})
        assert found.where(setting.name) == variable
        monkeypatch.delenv(variable)


@pytest.mark.parametrize("setting", ALL, ids=lambda setting: setting.name)
def test_every_setting_is_a_key(isolated, ecokv, engine, setting):
    bad, good = BAD_AND_GOOD[setting.name]
    file = isolated / "ecokv.toml"
    for key in (*setting.keys, setting.keys[0].replace("-", "_")):
        if bad is not None:
            file.write_text(f'{key} = "{bad}"\n')
            result = ecokv("chat", "Hi")
            assert result.code == 2 and result.err.startswith(f"error: {file}: {key}: ")
        file.write_text(f"{key} = true\n" if setting.is_switch else f'{key} = "{good}"\n')
        assert resolve("chat", ALL, {}).where(setting.name) == f"{file}: {key}"


@pytest.mark.parametrize("setting", ALL, ids=lambda setting: setting.name)
def test_every_setting_is_a_flag(ecokv, engine, setting):
    bad, _ = BAD_AND_GOOD[setting.name]
    if bad is None or setting.is_switch:
        return
    for flag in setting.flags:
        result = ecokv("chat", "Hi", flag, bad)
        assert result.code == 2 and result.err.startswith(f"error: {setting.label}: ")


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_flag_beats_variable_beats_project_beats_user(isolated, tmp_path, monkeypatch):
    temp = [setting for setting in ALL if setting.name == "temp"]
    assert resolve("chat", temp, {}).get("temp") is None
    write(tmp_path / "home" / "ecokv.toml", "temp = 0.1\n")
    assert resolve("chat", temp, {}).get("temp") == 0.1
    project = write(isolated / "ecokv.toml", "temp = 0.2\n")
    assert resolve("chat", temp, {}).get("temp") == 0.2
    project.write_text("temp = 0.2\n[chat]\ntemp = 0.3\n")
    assert resolve("chat", temp, {}).get("temp") == 0.3
    monkeypatch.setenv("ECOKV_TEMP", "0.4")
    assert resolve("chat", temp, {}).get("temp") == 0.4
    assert resolve("chat", temp, {"temp": "0.5"}).get("temp") == 0.5


def test_a_bad_value_is_an_error_even_where_it_would_lose(isolated, ecokv, engine, monkeypatch):
    monkeypatch.setenv("ECOKV_TEMP", "hot")
    assert ecokv("chat", "Hi", "--temp", 0).code == 2
    monkeypatch.delenv("ECOKV_TEMP")
    write(isolated / "ecokv.toml", 'temp = "hot"\n')
    assert ecokv("chat", "Hi", "--temp", 0).code == 2


def test_a_switch_can_be_turned_off_again(ecokv, engine, monkeypatch):
    monkeypatch.setenv("ECOKV_JSON", "1")
    assert ecokv("chat", "Hi").out.startswith("{")
    assert ecokv("chat", "Hi", "--no-json").out == "ok\n"


def test_an_empty_variable_is_unset(ecokv, engine, monkeypatch):
    monkeypatch.setenv("ECOKV_BUDGET", "")
    assert ecokv("chat", "Hi").code == 0


def test_two_spellings_of_one_setting(isolated, ecokv, engine, monkeypatch):
    write(isolated / "ecokv.toml", "budget = 64\nmax-kv-size = 65\n")
    assert "are the same setting" in ecokv("chat", "Hi").err
    (isolated / "ecokv.toml").unlink()
    monkeypatch.setenv("ECOKV_BUDGET", "64")
    monkeypatch.setenv("ECOKV_MAX_KV_SIZE", "64")
    assert "are the same setting" in ecokv("chat", "Hi").err


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("temperature = 1\n", "unknown key 'temperature'", "did you mean temp?"),
        ("[talk]\n", "there is no table [talk]", "[chat]"),
        ("temp = \n", "not valid TOML", ""),
        ("temp = true\n", "temp: True is not a value for it", ""),
        ("temp = [1]\n", "temp: [1] is not a value for it", ""),
        ("json = 1\n", "json: 1 is neither true nor false", "write true or false"),
        ("image = 1\n", "image: 1 is not a list of texts", ""),
        ("max-tokens = 1.5\n", "max-tokens: '1.5' is not a whole number", ""),
        ("budget = 0.5\n", "budget: ", "50%"),
        ("[chat]\nbudget = 0.5\n", "[chat] budget: ", "50%"),
    ],
)
def test_wrong_files(isolated, ecokv, engine, text, message, hint):
    file = write(isolated / "ecokv.toml", text)
    result = ecokv("chat", "Hi")
    assert result.code == 2 and f"error: {file}: " in result.err
    assert message in result.err and hint in result.err


def test_project_file_is_found_from_a_folder_inside(isolated, ecokv, engine, monkeypatch):
    write(isolated / "ecokv.toml", 'model = "models/a.gguf"\nlora = ["~/c.gguf"]\n')
    inside = isolated / "deep" / "er"
    inside.mkdir(parents=True)
    monkeypatch.chdir(inside)
    assert ecokv("chat", "Hi").code == 0
    assert engine.opened[0].model_path == str(isolated / "models" / "a.gguf")
    assert engine.opened[0].options["lora"] == [os.path.expanduser("~/c.gguf")]


def test_project_file_is_not_looked_for_outside_the_repository(isolated, ecokv, engine):
    write(isolated.parent / "ecokv.toml", "temperature = 1\n")
    assert ecokv("chat", "Hi").code == 0


def test_user_file_in_the_xdg_folder(tmp_path, ecokv, engine, monkeypatch):
    monkeypatch.delenv("ECOKV_HOME")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    write(tmp_path / "xdg" / "ecokv" / "ecokv.toml", 'budget = "25%"\n')
    ecokv("chat", "Hi")
    assert str(engine.opened[0].sessions[0].options["eviction"].budget) == "25%"


def test_project_and_user_file_may_be_one(isolated, ecokv, engine, monkeypatch):
    monkeypatch.setenv("ECOKV_HOME", str(isolated))
    write(isolated / "ecokv.toml", "temp = 0.5\n")
    assert ecokv("chat", "Hi").code == 0
    assert engine.opened[0].sessions[0].options["sampling"].temp == 0.5


def test_a_misspelt_variable_is_told(ecokv, engine, monkeypatch):
    monkeypatch.setenv("ECOKV_BUGDET", "64")
    monkeypatch.setenv("ECOKV_SOMETHING_ELSE", "64")
    result = ecokv("chat", "Hi")
    assert result.err == "warning: ECOKV_BUGDET is not a setting; did you mean ECOKV_BUDGET?\n"


def test_one_model(isolated, ecokv, engine, monkeypatch):
    assert "both name a model" in ecokv("chat", "Hi", "-m", "a.gguf", "-hf", "u/r").err
    write(isolated / "ecokv.toml", 'model = "a.gguf"\nmmproj = "b.gguf"\n')
    ecokv("chat", "Hi")
    result = ecokv("chat", "Hi", "-m", "c.gguf")
    first, second = engine.opened
    assert first.mmproj_path == str(isolated / "b.gguf")
    assert (second.model_path, second.mmproj_path) == ("c.gguf", None)
    assert "mmproj is not used: it belongs to another model" in result.err


def test_the_stronger_of_quiet_and_verbose_wins(ecokv, engine, monkeypatch):
    monkeypatch.setenv("ECOKV_QUIET", "1")
    assert "loading" in ecokv("chat", "Hi", "-v").err


def test_several_pictures_in_a_variable(isolated, ecokv, engine, monkeypatch):
    for name in ("a.png", "b.png"):
        (isolated / name).touch()
    monkeypatch.setenv("ECOKV_IMAGE", os.pathsep.join(("a.png", "b.png")))
    ecokv("chat", "Hi")
    assert engine.opened[0].sessions[0].asked[0].images == ("a.png", "b.png")
