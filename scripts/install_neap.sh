#!/bin/sh
# Builds neap and installs it with its manual pages and completions: PREFIX/bin, PREFIX/share.
#
#   scripts/install_neap.sh /usr/local       from a checkout, with Rust
set -eu
prefix=${1:?usage: scripts/install_neap.sh PREFIX}
root=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$prefix/bin"
prefix=$(cd "$prefix" && pwd)
cd "$root"
cargo build --release --locked --quiet -p neap-cli
cargo run --release --locked --quiet -p neap-cli --example manual -- "$prefix"
install -m 755 "${CARGO_TARGET_DIR:-$root/target}/release/neap" "$prefix/bin/neap"
