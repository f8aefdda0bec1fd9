#!/bin/sh
# Runs a command as on a processor that has AVX2 and nothing above it, at full speed:
#
#     scripts/avx2_only.sh cargo xtask test
#     scripts/avx2_only.sh target/release/neap bench model.onnx
#
# Needs x86-64, a C compiler, and the flag cpuid_fault in /proc/cpuinfo. Programs that are linked statically see the whole processor.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder="$here/../target"
mkdir -p "$folder"
library="$folder/avx2_only.so"
if [ ! "$library" -nt "$here/avx2_only.c" ]; then
    cc -O1 -Wall -Wextra -shared -fPIC "$here/avx2_only.c" -o "$library.$$" -ldl
    mv "$library.$$" "$library"
fi
[ $# -gt 0 ] || { echo "usage: avx2_only.sh COMMAND [ARGUMENT ...]" >&2; exit 2; }
LD_PRELOAD=$(cd "$folder" && pwd)/avx2_only.so exec "$@"
