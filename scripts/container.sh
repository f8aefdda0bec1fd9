#!/bin/sh
# Does what deploy/Containerfile says, without a container engine, and asks the server that comes of it.
#
#   sudo scripts/container.sh NEAP [MODELS]     the built program, and a folder with models
#
# The base image is a minimal Debian by debootstrap, in target/container. The first stage, which builds the program, is not run
# again: the program given is taken. The server is in a root of its own, as the image's user, within 320 MiB where
# a memory cgroup can be made.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
neap=$(realpath "${1:?"usage: scripts/container.sh NEAP [MODELS]"}")
models=$(realpath "${2:-"$root/../shared/models"}")
file="$root/deploy/Containerfile"
image="$root/target/container"
port=18080

mirror=$(sed -n 's/^URIs: *\([^ ]*\/debian\)\/*$/\1/p; s/^deb \(\[[^]]*\] \)*\([^ ]*\/debian\)\/* .*/\2/p' \
    /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | head -n 1)
if [ ! -e "$image/.complete" ]; then
    rm -rf "$image"
    debootstrap --variant=minbase bookworm "$image" ${mirror:+"$mirror"} >&2
    touch "$image/.complete"
fi

# Instructions of the last stage, one a line.
stage=$(sed -e :a -e '/\\$/N; s/\\\n//; ta' "$file" | awk '/^FROM /{text=""; next} /^[A-Z]+ /{text=text $0 "\n"} END{printf "%s", text}')
user=root environment="" entry="" arguments=""
words() { printf '%s' "$1" | sed 's/^\[//; s/\]$//; s/", *"/ /g; s/"//g'; }
while read -r instruction rest; do
    echo "container.sh: $instruction $rest" >&2
    case $instruction in
    COPY) install -m 755 "$neap" "$image/${rest##* }" ;;
    ENV) environment="$environment $rest" ;;
    RUN) chroot "$image" sh -c "$rest" || [ -e "$image/.ran" ] ;;
    USER) user=$rest ;;
    ENTRYPOINT) entry=$(words "$rest") ;;
    CMD) arguments=$(words "$rest" | sed "s/0\.0\.0\.0:8000/127.0.0.1:$port/") ;;
    VOLUME | EXPOSE | STOPSIGNAL) ;;
    *) echo "container.sh: unknown instruction $instruction" >&2 && exit 1 ;;
    esac
done <<END
$stage
END
touch "$image/.ran"

group=/sys/fs/cgroup/memory/neap-container-$$
if mkdir "$group" 2>/dev/null; then
    echo $((320 << 20)) >"$group/memory.limit_in_bytes"
else
    group=""
fi
mkdir -p "$image/models" "$image/proc"
export group image models user environment entry arguments
unshare --mount sh -c '
    [ -z "$group" ] || echo $$ >"$group/cgroup.procs"
    mount --bind "$models" "$image/models" && mount -o remount,ro,bind "$image/models" && mount -t proc proc "$image/proc" || exit 1
    exec chroot --userspec="$user" "$image" env $environment $entry $arguments' &
server=$!
trap 'kill $server 2>/dev/null; wait $server 2>/dev/null; [ -z "$group" ] || rmdir "$group"' EXIT
tries=0
until curl -sf "http://127.0.0.1:$port/v2/health/ready" >/dev/null; do
    tries=$((tries + 1))
    [ $tries -lt 600 ] && kill -0 $server || { echo "container.sh: the server does not get ready" >&2; exit 1; }
    sleep 0.1
done
curl -sf -X POST "http://127.0.0.1:$port/v2/repository/index" && echo
[ -z "$group" ] || echo "peak: $(($(cat "$group/memory.max_usage_in_bytes") >> 20)) MiB of 320" >&2
kill -TERM $server
wait $server && echo "container.sh: the server ended with 0"
