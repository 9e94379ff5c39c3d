"""CONTRIBUTING.md and the other pages name only commands and targets that exist."""

from __future__ import annotations

import re

from tests.test_tidy import ROOT, name, report, text_files

MAKE = re.compile(r"^make ((?:[a-z]+-)*[a-z]+)\b", re.MULTILINE)
COMMAND = re.compile(r"\bhalocline ([a-z]+) (?:[A-Z]{2,}|shop\b|bank\b|--)")
FENCE = re.compile(r"^```\n(.*?)^```", re.DOTALL | re.MULTILINE)
QUOTED = re.compile(r"`([^`\n]+)`")


def spoken() -> list[tuple[str, str]]:
    """(page, text) of everything on a page that is set as code and is not a program."""
    found = []
    for path in text_files():
        if path.suffix == ".md":
            text = path.read_text(encoding="utf-8")
            found += [(name(path), code) for code in FENCE.findall(text) + QUOTED.findall(text)]
    return found


def test_every_target_of_make_that_a_page_names_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE))
    report(
        "a target of make that is named exists",
        [
            f"{page}: make {target}"
            for page, code in spoken()
            for target in MAKE.findall(code)
            if target not in targets
        ],
    )


def test_every_command_that_a_page_names_exists() -> None:
    from halocline.cli.main import app

    commands = {getattr(command.callback, "__name__", "") for command in app.registered_commands}
    assert {"check", "health", "log", "maintain", "serve", "tables"} <= commands
    report(
        "a command of halocline that is named exists",
        [
            f"{page}: halocline {command}"
            for page, code in spoken()
            for command in COMMAND.findall(code)
            if command not in commands
        ],
    )


def test_every_folder_that_contributing_names_exists() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    paths = re.findall(r"`((?:tests|docs|src|examples|bench)/[\w./-]*)`", text)
    report("a path that is named exists", [path for path in paths if not (ROOT / path).exists()])


def test_the_test_that_contributing_begins_with_exists() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = re.findall(r"^[.]venv/bin/pytest (tests/\S+)", text, re.MULTILINE)
    assert named
    report("a test that is named exists", [path for path in named if not (ROOT / path).exists()])
