#!/bin/sh
# tier0_kernels.sh [bf16]: prints the kernels of tier 0 as a manifest for `attune bundle`; bf16: for instruction sets
# that have dot products of bf16.
#
# They leave open all that a kernel can leave open: lengths, batch, heads, strides, scale. Of a problem that fixes some
# of it, the library gives them the rest in each call (src/runtime/tier0.c).
#
# Kernels with reproducible=1 serve other problems, too. One query takes twice as long by these, and bf16 where it has
# dot products, so there are kernels without it as well.
set -eu
FEW=12 # at most so many queries: FEW_QUERIES in src/runtime/tier0.c

line() { # which, what differs
	echo "${dtype}_${dim}_$1: num_heads=1,seq_kv=dynamic,head_dim=$dim,dtype=$dtype,softmax_scale=dynamic,$2"
}
many() { # which, what differs
	line "many_$1" "seq_q=dynamic,reproducible=1$2"
	case $dtype$dots in bf16bf16) line "many_$1_fast" "seq_q=dynamic$2" ;; esac
}

dots=${1-}
for dim in 32 64 80 96 128 256; do
	for dtype in f32 bf16; do
		many all ""
		many causal ",is_causal=1"
		many right ",is_causal=1,causal_align=bottom_right"
		line few "seq_q=dynamic,max_seq_q=$FEW,reproducible=1"
		line one_fast "seq_q=1"
	done
	dtype=f16
	many all ""
	many causal ",is_causal=1"
	line one_fast "seq_q=1"
done
