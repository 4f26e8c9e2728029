#!/usr/bin/env bash
# The speed table of four shapes: BERT, a long prompt, the same causal, and one whose sizes are multiples of nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
exec "${BUILD:-build}/attune" bench "$@" \
    num_heads=12,seq_q=512,head_dim=64 \
    num_heads=32,seq_q=512,head_dim=128 \
    num_heads=16,seq_q=1024,head_dim=64,is_causal=1 \
    num_heads=20,seq_q=500,seq_kv=487,head_dim=80
