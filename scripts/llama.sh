#!/bin/sh
# Builds llama.cpp for this processor, and the program that times it, in .venv-llama in the repository root.
#
# The source is what llama-cpp-python's package carries. Prints the path of the program. Needs a C++ compiler and Python.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
version=0.3.36
folder="$root/.venv-llama"
program="$folder/llama_bench"

if ! [ -x "$program" ] || [ "$root/scripts/llama_bench.c" -nt "$program" ]; then
    mkdir -p "$folder"
    [ -x "$folder/bin/cmake" ] || {
        python3 -m venv "$folder"
        "$folder/bin/pip" install --quiet --disable-pip-version-check cmake ninja
    } >&2
    source="$folder/llama_cpp_python-$version/vendor/llama.cpp"
    [ -d "$source" ] || "$folder/bin/python" - "$version" "$folder" <<'PYTHON' >&2
import io, json, sys, tarfile, urllib.request
version, folder = sys.argv[1:]
about = json.load(urllib.request.urlopen(f"https://pypi.org/pypi/llama-cpp-python/{version}/json", timeout=60))
(url,) = [file["url"] for file in about["urls"] if file["packagetype"] == "sdist"]
archive = io.BytesIO(urllib.request.urlopen(url, timeout=600).read())
tarfile.open(fileobj=archive).extractall(folder, filter="data")
PYTHON
    PATH="$folder/bin:$PATH"
    parts="TESTS EXAMPLES TOOLS SERVER COMMON"
    cmake -G Ninja -S "$source" -B "$folder/build" -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAMA_CURL=OFF \
        $(for part in $parts; do echo "-DLLAMA_BUILD_$part=OFF"; done) >&2
    ninja -C "$folder/build" llama >&2
    gcc -O2 -o "$program" "$root/scripts/llama_bench.c" -I"$source/include" -I"$source/ggml/include" \
        -L"$folder/build/bin" -Wl,-rpath,"$folder/build/bin" -lllama -lggml -lggml-base >&2
fi
echo "$program"
