#!/usr/bin/env bash
# Makes the virtual environment that every make target runs in.
#
#     tools/setup.sh VENV EXTRAS        e.g. tools/setup.sh .venv dev,bench
#
# An environment that exists is used as it is; whatever is missing from it is installed. The
# Makefile calls this only when pyproject.toml has changed since it last succeeded. All chatter of
# pip goes to build/setup.log, whose end is shown when something fails.

set -euo pipefail

usage='usage: tools/setup.sh VENV EXTRAS        e.g. tools/setup.sh .venv dev,bench'
case ${1-} in
-h | --help)
    printf '%s\n' "$usage"
    exit
    ;;
'' | -*)
    printf '%s\n' "$usage" >&2
    exit 2
    ;;
esac
venv=$1
extras=${2-}
cd "$(dirname "$0")/.."
log=build/setup.log
mkdir -p build

say() { printf '%s\n' "$*"; }
fail() {
    printf '\nerror: %s\n' "$1" >&2
    shift
    for line in "$@"; do printf '       %s\n' "$line" >&2; done
    exit 1
}

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
    for candidate in ${PYTHON:-} python3 python3.14 python3.13 python3.12 python3.11 python; do
        if new_enough "$candidate"; then
            printf '%s' "$candidate"
            return
        fi
    done
    fail "Halocline needs Python 3.11 or newer; none was found." \
        "Found instead: $(python3 --version 2>&1 || true)" \
        "Install one, or name it: make test PYTHON=python3.12"
}

make_venv() {
    local python
    python=$(find_python)
    say "setup: creating $venv with $("$python" --version 2>&1)"
    if ! "$python" -m venv "$venv" >"$log" 2>&1; then
        rm -rf "$venv"
        tail -n 15 "$log" >&2
        fail "Python could not create a virtual environment." \
            "On Debian and Ubuntu this helps: apt-get install python3-venv"
    fi
}

install() {
    local started=$SECONDS
    say "setup: installing halocline${extras:+[$extras]} into $venv (the first time takes a minute)"
    "$venv/bin/python" -m pip --version >/dev/null 2>&1 ||
        "$venv/bin/python" -m ensurepip --upgrade >>"$log" 2>&1 ||
        fail "$venv has no pip and none could be put there." "Remove $venv and run make again."
    if ! "$venv/bin/python" -m pip install --disable-pip-version-check \
        -e ".${extras:+[$extras]}" >>"$log" 2>&1; then
        tail -n 15 "$log" >&2
        fail "the dependencies could not be installed." \
            "pip needs to reach PyPI, or a mirror named in its configuration." \
            "Its full output is in $log; run make again once that works."
    fi
    say "setup: done in $((SECONDS - started)) s"
}

: >"$log"
if [ ! -e "$venv/bin/python" ]; then
    make_venv
elif ! new_enough "$venv/bin/python"; then
    fail "$venv exists, but its Python does not run or is older than 3.11." \
        "Remove it (rm -r $venv) and run make again."
fi
install

# Spark needs Java. The check installs it only when Spark itself was asked for, and never fails.
case ",$extras," in
*,spark,*) tools/java.sh --install ;;
*) tools/java.sh ;;
esac
