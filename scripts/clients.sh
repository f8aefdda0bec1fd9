#!/bin/sh
# Makes the Python environment with clients of the server: .venv-clients in the repository root.
#
# Prints the path of its python on stdout when it is there; prints nothing and explains on stderr when it cannot be
# had. Exits 0 either way: the tests with these clients are then skipped, visibly.
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
venv="$root/.venv-clients"
wanted="$root/scripts/requirements-clients.txt"
marker="$venv/neap-requirements.txt"

give_up() {
    echo "clients.sh: $1; tests with real clients will be skipped" >&2
    exit 0
}

if ! { [ -x "$venv/bin/python" ] && cmp -s "$wanted" "$marker"; }; then
    command -v python3 >/dev/null 2>&1 || give_up "no python3 here"
    echo "clients.sh: making $venv (once)" >&2
    python3 -m venv "$venv" >&2 || give_up "python3 -m venv failed"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "$wanted" >&2 ||
        give_up "pip could not install $wanted"
    "$venv/bin/python" -c "import openai, tritonclient.http, tritonclient.grpc" || give_up "the installed packages do not load"
    cp "$wanted" "$marker" || give_up "cannot write $marker"
fi
echo "$venv/bin/python"
