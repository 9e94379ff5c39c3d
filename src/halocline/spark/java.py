"""Java: is there one that Spark can run on, and what to do if not.

Spark starts a Java process and, without one, fails after a while with a message about a gateway.
So we look first: JAVA_HOME, then the search path.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from halocline.errors import UnavailableError

JAVA_MIN = 17
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_HINT = "on Debian and Ubuntu: sudo apt-get install -y openjdk-17-jre-headless"


def check_java() -> None:
    """UnavailableError that says what to install, unless Java 17 or newer is there."""
    java = find_java()
    if java is None:
        raise UnavailableError(f"Spark needs Java {JAVA_MIN} or newer, none was found; {_HINT}")
    found = major_version(java)
    if found < JAVA_MIN:
        raise UnavailableError(
            f"Spark needs Java {JAVA_MIN} or newer, {java} is version {found or 'unknown'}; {_HINT}"
        )


def find_java() -> str | None:
    """The java program that Spark would start."""
    home = os.environ.get("JAVA_HOME")
    if home:
        path = Path(home, "bin", "java")
        return str(path) if path.exists() else None
    return shutil.which("java")


def major_version(java: str) -> int:
    """17 for "17.0.15", 8 for "1.8.0_402"; 0 when the program does not run."""
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = _VERSION.search(done.stderr + done.stdout)
    return int(match[1]) if match else 0
