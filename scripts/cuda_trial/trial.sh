#!/bin/bash
# On a machine with a card: everything that only a card can show, in a few minutes. One folder holds all that it needs:
# neap-gpu, libneap_hook.so, calls, neap_job.py and the programs beside this script. See ../cuda_trial.sh.
#
# usage: trial.sh [FOLDER-FOR-THE-LOG]
here=$(cd "$(dirname "$0")" && pwd)
log=${1:-/tmp}/cuda_trial.log
export PYTHONPATH=$here PYTHONUNBUFFERED=1 NEAP_HOOK=$here/libneap_hook.so
work=$(mktemp -d)
gpu=$here/neap-gpu
chmod +x "$gpu" "$here/calls"
exec > >(tee "$log") 2>&1
began=$SECONDS
say() { echo "== $((SECONDS - began)) s: $*"; }

# daemon NAME OPTIONS…: a scheduler whose socket is $work/NAME
daemon() {
    local name=$1
    shift
    "$gpu" gpud --socket "$work/$name" "$@" &
    daemons+=($!)
    until "$gpu" gputop --once --socket "$work/$name" > /dev/null 2>&1; do sleep 0.05; done
}
# run NAME OPTIONS… -- COMMAND…: a program under that scheduler, for a minute at most
run() {
    local name=$1
    shift
    timeout 60 "$gpu" gpu run --socket "$work/$name" "$@"
}
all() { for one in "$@"; do wait "$one" || echo "FAILED: a program ended with $?"; done; }

say "the card"
nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader
date -u +%F
python3 -c 'import torch, torchvision; print("PyTorch", torch.__version__, torch.cuda.get_device_name())' || echo "no PyTorch here"

daemon small --memory 8GiB
say "calls: plain, then with the hook"
"$here/calls" 1000000
run small -- "$here/calls" 1000000

say "Figure 4: 300 MiB, by chunk size"
timeout 60 python3 "$here/figure4.py" "$gpu" "$NEAP_HOOK" "$work/small" 4 2 8 32 64 256

say "a program alone: plain, then with the hook"
timeout 60 python3 "$here/torch_job.py" eager 256 300
run small -- python3 "$here/torch_job.py" eager 256 300

say "four ways to allocate, together in 4 GiB: each with 1.5 GiB and more"
daemon four --memory 4GiB --slice 50ms
pids=()
run four --memory 3GiB -- python3 "$here/torch_job.py" eager 1536 150 & pids+=($!)
run four --memory 3GiB -- python3 "$here/torch_job.py" graph 1536 150 & pids+=($!)
PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True PYTORCH_ALLOC_CONF=expandable_segments:True \
    run four --memory 3GiB -- python3 "$here/torch_job.py" eager 1536 150 & pids+=($!)
PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync PYTORCH_ALLOC_CONF=backend:cudaMallocAsync \
    run four --memory 3GiB -- python3 "$here/torch_job.py" eager 1536 150 & pids+=($!)
sleep 15
"$gpu" gputop --once --socket "$work/four"
all "${pids[@]}"

say "six programs with periods, 6 times 1 GiB in 4 GiB"
daemon six --memory 4GiB --learn 10 --swap 25ms
pids=()
for period in 300 300 450 450 600 600; do
    run six --memory 1GiB --period ${period}ms -- \
        python3 "$here/torch_job.py" eager 448 $((24000 / period)) $period & pids+=($!)
done
sleep 28
"$gpu" gputop --once --socket "$work/six"
all "${pids[@]}"
"$gpu" gputop --once --socket "$work/six"

say "CuPy, JAX and torch.compile, together in 3 GiB"
daemon three --memory 3GiB --slice 50ms
pids=()
run three --memory 2GiB -- python3 "$here/other_job.py" cupy 900 20 & pids+=($!)
run three --memory 2GiB -- python3 "$here/other_job.py" jax 900 20 & pids+=($!)
run three --memory 2GiB -- python3 "$here/torch_job.py" compile 1024 50 & pids+=($!)
all "${pids[@]}"

kill "${daemons[@]}"
rm -rf "$work"
say "the end"
