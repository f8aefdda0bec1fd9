#!/bin/bash
# Makes the folder of the trial on a real card, of a few MB, which goes to a machine that has one:
#   scripts/cuda_trial.sh FOLDER        then, there: bash FOLDER/trial.sh [FOLDER-FOR-THE-LOG]
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
folder=${1:?usage: cuda_trial.sh FOLDER}
built=${NEAP_GPU_BUILD:-}
if [ -z "$built" ]; then
    (cd "$root" && cargo build --release -p neap-hook -p neap-gpud)
    built=${CARGO_TARGET_DIR:-$root/target}/release
fi
mkdir -p "$folder"
cp "$built/neap-gpu" "$built/libneap_hook.so" "$folder/"
cp "$root"/scripts/cuda_trial/*.{py,sh} "$root/crates/neap-hook/include/neap_job.py" "$folder/"
cc -O2 -o "$folder/calls" "$root/scripts/cuda_trial/calls.c" -ldl
strip "$folder/neap-gpu" "$folder/libneap_hook.so"
du -sh "$folder"
