#!/bin/sh
# Runs deploy/ray_serve.py on a Ray of its own, with two replicas, and checks every answer.
#
#   scripts/ray.sh NEAP        the program, such as target/release/neap
#
# Ray comes from PyPI, into target/ray-venv.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
neap=${1:?"usage: scripts/ray.sh NEAP"}
venv="$root/target/ray-venv"
wanted="$root/scripts/requirements-ray.txt"
marker="$venv/neap-requirements.txt"

if ! { [ -x "$venv/bin/python" ] && cmp -s "$wanted" "$marker"; }; then
    echo "ray.sh: making $venv (once)" >&2
    python3 -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "$wanted"
    cp "$wanted" "$marker"
fi
exec "$venv/bin/python" "$root/scripts/serve_ray.py" "$(realpath "$neap")"
