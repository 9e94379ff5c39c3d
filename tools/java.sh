#!/usr/bin/env bash
# Looks for Java 17 or newer, which Spark needs, and says in one line what it found.
#
#     tools/java.sh              look
#     tools/java.sh --install    look, and install it with apt when that needs no password
#
# Always succeeds: where Java is missing, everything that needs no Spark goes on, and the exact
# command for the rest is printed.

set -uo pipefail

package=openjdk-17-jre-headless

# The major version of a java binary: 17 for "17.0.15", 8 for "1.8.0_402"; 0 when it does not run.
major() {
    local version
    version=$("$1" -version 2>&1 | sed -n 's/.*version "\([0-9._]*\).*/\1/p' | head -n 1)
    version=${version#1.}
    version=${version%%[._]*}
    printf '%s' "${version:-0}"
}

find_java() {
    for candidate in "${JAVA_HOME:+$JAVA_HOME/bin/java}" java; do
        if [ -n "$candidate" ] && [ "$(major "$candidate")" -ge 17 ]; then
            printf '%s' "$candidate"
            return 0
        fi
    done
    return 1
}

report() {
    local java
    java=$(find_java) || return 1
    printf 'java: version %s found, Spark can run\n' "$(major "$java")"
}

report && exit 0

as_root=unknown
if [ "$(id -u)" -eq 0 ]; then
    as_root=""
elif sudo -n true >/dev/null 2>&1; then
    as_root="sudo -n"
fi

if [ "${1-}" = --install ] && [ "$as_root" != unknown ] && command -v apt-get >/dev/null 2>&1; then
    printf 'java: installing %s\n' "$package"
    export DEBIAN_FRONTEND=noninteractive
    mkdir -p build
    {
        $as_root apt-get update -qq && $as_root apt-get install -y -qq "$package"
    } >build/java.log 2>&1
    report && exit 0
fi

if command -v apt-get >/dev/null 2>&1; then
    command="sudo apt-get update && sudo apt-get install -y $package"
elif command -v brew >/dev/null 2>&1; then
    command="brew install openjdk@17 && export JAVA_HOME=\$(brew --prefix openjdk@17)"
else
    command="install a Java 17 runtime and set JAVA_HOME to it"
fi
printf 'java: no Java 17 or newer here, so nothing with Spark will run; to change that: %s\n' \
    "$command"
exit 0
