#!/bin/sh
# tier0_kernels.sh [bf16|ggml|operators]: prints the kernels of tier 0 as a manifest for `attune bundle`. bf16: those
# that instruction sets with dot products of bf16 have beside the kernels of the same registers without; the others
# would be the same. ggml: those of libggml-attune.so, which engines without ggml do not need. operators: those of
# described operators (src/described), and of MLA's latents.
#
# They leave open all that a kernel can leave open: lengths, batch, heads, strides, scale. Of a problem that fixes some
# of it, the library gives them the rest in each call (src/engine/tier0.c). All write lse, which costs less room than
# kernels for both: where the caller wants none, it is written into the workspace.
#
# Kernels with reproducible=1 serve other problems, too. Few queries take up to twice as long by these, and bf16 where
# it has dot products, so there are kernels without it as well.
set -eu
FEW=12 # at most so many queries: FEW_QUERIES in src/engine/tier0.c

line() { # which, what differs
	echo "${dtype}_${dim}_$1: num_heads=1,seq_kv=dynamic,head_dim=$dim,dtype=$dtype,softmax_scale=dynamic,has_lse=1,$2"
}
many() { # suffix, what differs
	line "many_all$1" "seq_q=dynamic$2"
	line "many_causal$1" "seq_q=dynamic,is_causal=1,causal_align=top_left$2"
	# With other widths and f16, kernels for steps compute it.
	[ $dim != 32 ] || [ $dtype = f16 ] || line "many_right$1" "seq_q=dynamic,is_causal=1$2"
}
dots() {
	dtype=bf16
	many _fast ""
	line few_fast "seq_q=dynamic,max_seq_q=$FEW"
	line one_fast "seq_q=1"
}
kernels() {
	for dtype in f32 bf16 f16; do
		many "" ,reproducible=1
		[ $dtype = f16 ] || line few "seq_q=dynamic,max_seq_q=$FEW,reproducible=1"
		[ $dtype != f32 ] || line few_fast "seq_q=dynamic,max_seq_q=$FEW"
		line one_fast "seq_q=1"
	done
}

# Steps of language models: ragged batches over pages, to which they may append. The group of heads and the page are
# arguments, too, and so are window and sinks, which many calls have not. Many queries take as long with reproducible=1,
# and calls with it have few queries computed by that kernel, too.
WINDOW=1000000 # stands for any, and for none: ANY_WINDOW in src/engine/tier0.c
page=16
steps() { # suffix, what differs, what differs with many queries
	step="softmax_scale=dynamic,has_lse=1,is_ragged=1,page_size=$page,has_kv_lens=1,seq_new=dynamic,is_causal=1"
	step="$step,is_general=1,window_left=$WINDOW,has_sinks=1"
	step="num_heads=1,seq_q=dynamic,seq_kv=dynamic,head_dim=$dim,dtype=$dtype,$step$2"
	echo "step_${dtype}$1_${dim}_many: $step${3-}"
	echo "step_${dtype}$1_${dim}_few: $step,max_seq_q=$FEW"
}
CAP=1 # stands for any soft cap: ANY_CAP in src/engine/tier0.c

# By ggml's caches, which are of other types than queries. Lists of keys have pages of one.
caches() { # suffix, what differs
	steps _f16$1 ",k_dtype=f16,v_dtype=f16${2-}"
	steps _bf16$1 ",k_dtype=bf16,v_dtype=bf16${2-}"
	case $dim in 80 | 112) return ;; esac # no whole blocks of 32 columns
	steps _q8_0$1 ",kv_dtype=i8,kv_scales=inline${2-}"
	steps _q4_0$1 ",kv_dtype=i4,kv_scales=inline${2-}"
	case $1$dim in 64 | 128 | 256 | _listed64 | _listed128 | _listed256)
		steps _q8_0_q4_0$1 ",k_dtype=i8,k_scales=inline,v_dtype=i4,v_scales=inline" ;;
	esac
}
ggml() {
	dtype=f32
	for dim in 64 80 96 112 128 256 512; do
		page=16
		caches ""
		case $dim in 64 | 128) caches _alibi ,has_alibi_slopes=1 ;; esac
		case $dim in 128 | 256) caches _cap ,logits_soft_cap=$CAP ;; esac
		page=1
		caches _listed
		case $dim in 128 | 256) caches _listed_cap ,logits_soft_cap=$CAP ;; esac
	done
	# V of another width: multi-head latent attention, whose V is in K, and models with narrow values.
	for page in 16 1; do
		dim=576 && caches _latent_$page ,head_dim_v=512,v_in_k=1
		dim=320 && caches _latent_$page ,head_dim_v=256,v_in_k=1
		dim=192 && caches _narrow_$page ,head_dim_v=128
	done
}
if [ "${1-}" = ggml ]; then
	ggml
	exit
fi

# Multi-head latent attention, absorbed: a latent and its rotated part are the key, the latent is the value. Some
# models list keys, which an index chooses (DeepSeek V3.2).
latents() { # types, what differs with many queries
	dim=576
	for dtype in $1; do steps _latent ",head_dim_v=512,v_in_k=1" "${2-}"; done
	dtype=bf16
	line listed "seq_q=dynamic,head_dim_v=512,v_in_k=1,is_ragged=1,page_size=$page,has_kv_lens=1,seq_new=dynamic,$listed"
	echo "index_bf16: op=index,num_heads=1,head_dim=128,num_ids=1,dtype=bf16,kernel=any"
}
listed=is_general=1,kv_ids=query,has_kv_id_lens=1

# Linear attention for heads of any size, with a decay for each head (Qwen3-Next, Qwen3.5, Olmo Hybrid), for each key
# (Kimi Linear), and without the delta rule (Mamba 2, lightning attention). Only the last has no kernel for prompts. The
# convolution of four taps before it.
operators() {
	for dtype in f32 bf16; do
		any="op=linear,num_heads=1,head_dim=64,dtype=$dtype"
		delta="$any,rule=gated_delta,has_beta=1"
		echo "gated_delta_$dtype: $delta,decay=head,kernel=any"
		echo "gated_delta_tokens_$dtype: $delta,decay=head,kernel=any_tokens"
		echo "gated_delta_key_$dtype: $delta,decay=key,kernel=any"
		echo "gated_delta_key_tokens_$dtype: $delta,decay=key,kernel=any_tokens"
		echo "gated_$dtype: $any,rule=gated,decay=head,kernel=any"
		for form in channels tokens; do
			echo "conv_${dtype}_$form: op=conv,channels=1,taps=4,dtype=$dtype,has_silu=1,kernel=$form"
		done
	done
}
if [ "${1-}" = operators ]; then
	operators
	latents "bf16 f32" ,reproducible=1
	exit
fi
[ "${1-}" != bf16 ] || latents bf16
for dim in 32 64 80 96 128 256; do
	case ${1-} in bf16) dots ;; *) kernels ;; esac
done
for dim in 64 80 96 112 128 256; do
	for dtype in bf16 $([ "${1-}" = bf16 ] || echo f32 f16); do
		steps "" "" $([ "${1-}" = bf16 ] || echo ,reproducible=1)
		[ $dtype = f16 ] || [ "${1-}" = bf16 ] || steps _i8 ,kv_dtype=i8,kv_scales=token
		# Models with caps have these widths. Their numbers go beyond those of f16.
		case ${dtype}_$dim in bf16_128 | bf16_256 | f32_128 | f32_256) steps _cap ",logits_soft_cap=$CAP" ;; esac
	done
done
