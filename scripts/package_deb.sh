#!/bin/sh
# Makes Debian packages of neap and of the C library in FOLDER. Needs cargo-deb: cargo install cargo-deb
#
#   scripts/package_deb.sh FOLDER
set -eu
usage="usage: scripts/package_deb.sh FOLDER"
case ${1:-} in
-h | --help) echo "$usage" && exit 0 ;;
"" | -*) echo "$usage" >&2 && exit 2 ;;
esac
folder=$1
root=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
cd "$root"
staged=target/deb
rm -rf "$staged"
cargo run --release --locked --quiet -p neap-cli --example manual -- "$staged/neap"
gzip -9 -n "$staged"/neap/share/man/man1/*.1
scripts/install_c.sh "$staged/c"
# The system's folder is the loader's own.
sed -i -e "s|^prefix=.*|prefix=/usr|" -e "s| -Wl,-rpath,[^ ]*||" "$staged/c/lib/pkgconfig/neaptide.pc"
cargo build --release --locked --quiet -p neap-cli
for crate in neap-cli neap-c; do
    cargo deb --quiet --no-build --package "$crate" --output "$folder"
done
