#!/bin/sh
# Installs what cross-building for 64-bit Arm and running the result needs, from Debian's packages.
set -eu
export DEBIAN_FRONTEND=noninteractive
dpkg --add-architecture arm64
apt-get update -qq
apt-get install -y -qq --no-install-recommends rustc-web libstd-rust-web-dev:arm64 gcc-aarch64-linux-gnu \
    libc6-dev-arm64-cross qemu-user-static >/dev/null
