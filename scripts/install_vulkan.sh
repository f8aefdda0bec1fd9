#!/bin/sh
# Installs a Vulkan driver that computes on the processor, and the validation layer, from Debian's packages.
set -eu
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends libvulkan1 mesa-vulkan-drivers vulkan-validationlayers >/dev/null
