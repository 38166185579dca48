#!/usr/bin/env bash
# What muster does on a machine with an NVIDIA GPU, as it happens: docs/guides/gpu.md shows such a run. Needs a built
# muster on the PATH and a Python with PyTorch.
set -euo pipefail
cd "$(dirname "$0")/.."

MUSTER_HOME="$(mktemp -d)"
export MUSTER_HOME
trap 'muster server stop --all >/dev/null 2>&1 || muster server stop >/dev/null 2>&1 || true; rm -rf "$MUSTER_HOME"' EXIT

# shown COMMAND: what was typed, and what came of it.
shown() {
    printf '\n$ %s\n' "$1"
    bash -c "$1" 2>&1
}

cat >"$MUSTER_HOME/burn.py" <<'PY'
import time, torch
hold = torch.empty(8 << 30, dtype=torch.uint8, device="cuda").fill_(1)  # 8 GiB that must show as memory.
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
print("burning", flush=True)
end = time.time() + 45
while time.time() < end:
    for _ in range(100):
        b = a @ a
    torch.cuda.synchronize()
PY
export BURN="$MUSTER_HOME/burn.py"

shown 'nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv'
shown "muster run --gpus 1 'echo CUDA_VISIBLE_DEVICES=\$CUDA_VISIBLE_DEVICES; nvidia-smi -L'"
shown 'muster nodes'
shown "muster run 'echo without --gpus: CUDA_VISIBLE_DEVICES=\"\$CUDA_VISIBLE_DEVICES\"; python -c \"import torch; print(torch.cuda.is_available())\"'"
shown 'muster run --gpus 1 --workdir examples/pytorch -- python train.py'
shown 'muster run --gpus 1 --processes 2 --env BACKEND=gloo --workdir examples/pytorch -- train.py'
shown "muster run --detach --gpus 1 --name burn --in-place -- python \$BURN"
for _ in $(seq 100); do muster logs burn | grep -q burning && break; sleep 0.3; done
# Three looks of the agent, five seconds apart.
sleep 16
shown 'muster show burn'
shown 'muster nodes --wide'
shown 'nvidia-smi --query-gpu=utilization.gpu,memory.used,power.draw,temperature.gpu --format=csv'
shown "curl -s --unix-socket \$MUSTER_HOME/server.sock http://muster/metrics | grep ^muster_device_"
shown 'muster wait burn; muster show burn'
agent="$(muster server status --json | python3 -c 'import json,sys; print(json.load(sys.stdin)["nodes"][0]["agent_pid"])')"
printf '\nthe agent, with NVML open: '
grep VmRSS "/proc/$agent/status"
