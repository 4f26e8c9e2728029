#!/usr/bin/env bash
# The speed table: attention of BERT, of a long prompt, the same causal, and of sizes that are multiples of nothing;
# then whole blocks, projections included.
set -euo pipefail
cd "$(dirname "$0")/.."
exec "${BUILD:-build}/attune" bench "$@" \
    num_heads=12,seq_q=512,head_dim=64 \
    num_heads=32,seq_q=512,head_dim=128 \
    num_heads=16,seq_q=1024,head_dim=64,is_causal=1 \
    num_heads=20,seq_q=500,seq_kv=487,head_dim=80 \
    embed_dim=768,num_heads=12,seq_q=128 \
    embed_dim=768,num_heads=12,seq_q=512 \
    embed_dim=1024,num_heads=16,seq_q=512
