#!/bin/sh
# Builds the C library and installs it: PREFIX/lib, PREFIX/include, PREFIX/lib/pkgconfig.
#
#   scripts/install_c.sh /usr/local       from a checkout, with Rust
# Programs that are linked by `pkg-config --libs neaptide` find the library in PREFIX/lib. Others need ldconfig, or
# LD_LIBRARY_PATH, where PREFIX/lib is no folder of the system's loader.
set -eu
prefix=${1:?usage: scripts/install_c.sh PREFIX}
root=$(cd "$(dirname "$0")/.." && pwd)
cargo build --release --locked --quiet -p neap-c --manifest-path "$root/Cargo.toml"
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$root/Cargo.toml" | head -n 1)
mkdir -p "$prefix/lib/pkgconfig" "$prefix/include"
prefix=$(cd "$prefix" && pwd)
install -m 755 "${CARGO_TARGET_DIR:-$root/target}/release/libneaptide_c.so" "$prefix/lib/libneaptide.so.$version"
ln -sf "libneaptide.so.$version" "$prefix/lib/libneaptide.so.0"
ln -sf libneaptide.so.0 "$prefix/lib/libneaptide.so"
install -m 644 "$root/crates/neap-c/include/neaptide.h" "$prefix/include/neaptide.h"
sed -e "s|@PREFIX@|$prefix|" -e "s|@VERSION@|$version|" "$root/crates/neap-c/neaptide.pc.in" > "$prefix/lib/pkgconfig/neaptide.pc"
echo "$prefix/lib/libneaptide.so.0; programs find it by: pkg-config --cflags --libs neaptide (PKG_CONFIG_PATH=$prefix/lib/pkgconfig)"
