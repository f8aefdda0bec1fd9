#!/bin/sh
# Makes the Python environment with the reference engine: .venv in the repository root.
#
# Prints the path of its python on stdout when it is there; prints nothing and explains on
# stderr when it cannot be had. Exits 0 either way: comparisons are then skipped, visibly.
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
venv="$root/.venv"
wanted="$root/scripts/requirements.txt"
marker="$venv/neap-requirements.txt"

ready() {
    [ -x "$venv/bin/python" ] && cmp -s "$wanted" "$marker"
}

give_up() {
    echo "venv.sh: $1; comparisons with onnxruntime will be skipped" >&2
    exit 0
}

if ! ready; then
    # One maker at a time: parallel test processes may all get here.
    if command -v flock >/dev/null 2>&1; then
        exec 9<"$wanted" || give_up "cannot read $wanted"
        flock 9
    fi
fi
if ! ready; then
    command -v python3 >/dev/null 2>&1 || give_up "no python3 here"
    echo "venv.sh: making $venv (once)" >&2
    python3 -m venv "$venv" >&2 || give_up "python3 -m venv failed"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "$wanted" >&2 ||
        give_up "pip could not install $wanted"
    "$venv/bin/python" -c "import numpy, onnx, onnxruntime" || give_up "the installed packages do not load"
    cp "$wanted" "$marker" || give_up "cannot write $marker"
fi
echo "$venv/bin/python"
