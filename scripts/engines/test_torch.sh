#!/usr/bin/env bash
# Loads PyTorch and attune into one process and looks which symbols meet, then compares the block with
# torch.nn.MultiheadAttention, Keras, Flax and JAX: tests/peers. What is missing of them, pip puts
# into a virtual environment, $BUILD/peers; VENV=DIR names another. Arguments are for tests/peers/main.py.
set -euo pipefail
cd "$(dirname "$0")/../.."
build=${BUILD:-build}
venv=${VENV:-$build/peers}
python=$venv/bin/python

# has MODULE…: whether all can be found; nothing is loaded.
has() {
    "$python" -c 'import importlib.util, sys; sys.exit(None in map(importlib.util.find_spec, sys.argv[1:]))' "$@"
}

if [ ! -x "$python" ]; then
    python3 -c 'import ensurepip, venv' 2>/dev/null || bash scripts/deps.sh torch
    echo "creating a virtual environment in $venv; what $(command -v python3) has serves there too"
    python3 -m venv --system-site-packages "$venv"
fi
if ! has numpy torch; then
    echo "installing numpy and torch 2.13.0 for the CPU with pip into $venv: some 200 MB to download"
    "$python" -m pip install -q numpy torch==2.13.0+cpu --extra-index-url https://download.pytorch.org/whl/cpu
fi
if ! has keras; then
    echo "installing keras 3.15.1 with pip into $venv"
    "$python" -m pip install -q keras==3.15.1
fi
if ! has jax flax; then
    echo "installing jax 0.10.2 and flax 0.12.8 with pip into $venv; without them their families are left out"
    "$python" -m pip install -q jax==0.10.2 flax==0.12.8 || true
fi
export PYTHONDONTWRITEBYTECODE=1 KERAS_BACKEND=torch JAX_PLATFORMS=cpu
"$python" tests/peers/bindings.py "$build"
exec "$python" tests/peers/main.py --attune "$build/attune" "$@"
