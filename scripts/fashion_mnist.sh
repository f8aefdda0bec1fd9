#!/bin/sh
# Fetches Fashion-MNIST (Debian's package dataset-fashion-mnist, Expat) and unpacks it into a folder:
#
#     scripts/fashion_mnist.sh target/fashion-mnist
set -eu
[ $# -eq 1 ] || { echo "usage: $0 FOLDER" >&2; exit 2; }
mkdir -p "$1"
folder=$(cd "$1" && pwd)
[ -f "$folder/t10k-labels-idx1-ubyte" ] && exit 0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
apt-get download -qq -o APT::Sandbox::User=root dataset-fashion-mnist
dpkg -x dataset-fashion-mnist_*.deb .
find . -name '*-ubyte.gz' | while read -r file; do
    name=$(basename "$file" .gz)
    gunzip -c "$file" > "$folder/$name.part"
    mv "$folder/$name.part" "$folder/$name"
done
