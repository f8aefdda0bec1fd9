#!/bin/sh
# Makes the Python environment with the engines to compare with: .venv-peers in the repository root.
#
# Prints the path of its python on stdout when it is there; prints nothing and explains on stderr
# when it cannot be had. An engine that cannot be installed is named and left out: whoever uses it
# finds that out by importing it. Exits 0 either way.
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
venv="$root/.venv-peers"
wanted="$root/scripts/requirements-peers.txt"
marker="$venv/neap-requirements.txt"

give_up() {
    echo "peers.sh: $1; the other engines will be left out" >&2
    exit 0
}

if ! { [ -x "$venv/bin/python" ] && cmp -s "$wanted" "$marker"; }; then
    command -v python3 >/dev/null 2>&1 || give_up "no python3 here"
    echo "peers.sh: making $venv (once)" >&2
    python3 -m venv "$venv" >&2 || give_up "python3 -m venv failed"
    complete=yes
    for package in $(grep -v '^#' "$wanted"); do
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps "$package" >&2 || {
            echo "peers.sh: pip could not install $package" >&2
            complete=no
        }
    done
    # Tried again next time unless all are there.
    [ $complete = no ] || cp "$wanted" "$marker" || give_up "cannot write $marker"
fi
echo "$venv/bin/python"
