#!/bin/sh
# Python for 64-bit Arm with numpy, to run under emulation, from Debian's and PyPI's packages: nothing is installed on this machine.
#
#   scripts/arm_python.sh FOLDER NUMPY     NUMPY is a version
#
# Makes FOLDER/root (the C library, Python) and FOLDER/packages (numpy), and prints the version of Python, such as 3.11.
set -eu
folder=$1
numpy=$2
version=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
marker="$folder/made-with-$version-$numpy"
if [ ! -e "$marker" ]; then
    rm -rf "$folder"
    mkdir -p "$folder/debs" "$folder/root"
    (
        cd "$folder/debs"
        apt-get download -qq $(for name in libc6 libgcc-s1 libstdc++6 zlib1g libexpat1 libffi8 libbz2-1.0 liblzma5 \
            "libpython$version-minimal" "libpython$version-stdlib" "python$version-minimal"; do echo "$name:arm64"; done)
        for package in *.deb; do dpkg -x "$package" "$folder/root"; done
    ) >&2
    python3 -m pip install --quiet --disable-pip-version-check --only-binary=:all: --platform manylinux_2_28_aarch64 \
        --platform manylinux2014_aarch64 --python-version "$version" --target "$folder/packages" "numpy==$numpy" >&2
    rm -rf "$folder/debs"
    touch "$marker"
fi
echo "$version"
