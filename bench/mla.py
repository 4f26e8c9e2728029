"""attune.MLA beside transformers' DeepseekV3Attention, one thread, by the clock of the processor, in turns.

    python3 bench/mla.py [--heads N] [--dtype bf16|f32]        (needs torch and transformers; PYTHONPATH=python)
"""
import argparse
import statistics

import torch
import transformers
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek

import attune
from machine import seconds


def layer_of(options):
    """A layer of DeepSeek-V3 with fewer heads, its other sizes those of the model."""
    config = transformers.DeepseekV3Config(num_attention_heads=options.heads, num_key_value_heads=options.heads,
                                           hidden_size=options.embed, num_hidden_layers=1)
    config._attn_implementation = "sdpa"
    torch.manual_seed(1)
    layer = deepseek.DeepseekV3Attention(config, 0).eval()
    return config, layer.to(torch.bfloat16 if options.dtype == "bf16" else torch.float32)


def block_of(config, layer, **more):
    return attune.MLA(layer.state_dict(), num_heads=config.num_attention_heads, page_size=64,
                      qk_nope_head_dim=config.qk_nope_head_dim, qk_rope_head_dim=config.qk_rope_head_dim,
                      softmax_scale=layer.scaling, norm_eps=config.rms_norm_eps, **more)


class Turn:
    """A step of `new` tokens for each of `batch` sequences that have `past` tokens already."""

    def __init__(self, config, layer, block, batch, new, past):
        dtype, half = next(layer.parameters()).dtype, config.qk_rope_head_dim // 2
        self.layer, self.block, self.past, self.config = layer, block, past, config
        self.x = torch.randn(batch, past + new, config.hidden_size, dtype=dtype)
        rotary = deepseek.DeepseekV3RotaryEmbedding(config)
        cos, sin = rotary(self.x, torch.arange(past + new)[None])
        self.angles = cos.to(dtype), sin.to(dtype)
        self.half = [a[0, :, :half].float().contiguous() for a in (cos, sin)]
        pages = -(-(past + new) // 64)
        self.cache = torch.zeros(batch * pages, 64, block.width, dtype=dtype)
        self.table = torch.arange(batch * pages, dtype=torch.int32).view(batch, pages)
        self.lens = torch.full((batch,), past + new, dtype=torch.int32)
        self.now = self.x[:, past:].contiguous()
        if past:
            block.run(self.x[:, :past].contiguous(), self.cache, *self.half, kv_lens=self.lens - new,
                      block_table=self.table)
            self.filled = self.fill()

    def fill(self):
        cache = transformers.DynamicCache(config=self.config)
        self.layer(self.x[:, :self.past], tuple(a[:, :self.past] for a in self.angles), self.mask(self.past, self.past),
                   past_key_values=cache)
        return cache

    @staticmethod
    def mask(new, keys):
        return torch.ones(new, keys, dtype=torch.bool).tril(keys - new)[None, None] if new > 1 else None

    def stock(self):
        """The tokens again: the cache is cut first, which takes no time."""
        cache = None
        if self.past:
            cache = self.filled
            cache.crop(self.past - cache.get_seq_length())
        keys = self.x.shape[1]
        return self.layer(self.now, tuple(a[:, self.past:] for a in self.angles), self.mask(keys - self.past, keys),
                          past_key_values=cache)[0]

    def own(self):
        return self.block.run(self.now, self.cache, *self.half, kv_lens=self.lens, block_table=self.table,
                              max_threads=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--embed", type=int, default=2048)
    parser.add_argument("--dtype", default="bf16", choices=["bf16", "f32"])
    parser.add_argument("--form", default="by_cost")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{attune.info()['cpu_description']}, torch {torch.__version__}, transformers {transformers.__version__}, "
          f"{options.dtype}, {options.heads} heads, embed_dim {options.embed}")
    print(f"{'batch':>6}{'new':>6}{'past':>6}{'torch ms':>12}{'attune ms':>12}{'ratio':>8}")
    with torch.no_grad():
        config, layer = layer_of(options)
        block = block_of(config, layer, form=options.form)
        for batch, new, past in ((1, 1, 512), (1, 1, 4096), (8, 1, 1024), (1, 512, 0), (1, 2048, 0), (1, 128, 2048)):
            turn = Turn(config, layer, block, batch, new, past)
            wanted, got = turn.stock().float(), turn.own().float()
            error = (got - wanted).abs().max() / wanted.abs().max()
            assert error < (0.05 if options.dtype == "bf16" else 1e-4), error
            pairs = [(seconds(turn.stock), seconds(turn.own)) for _ in range(15 if new == 1 else 5)]
            stock_s, own_s = (statistics.median(column) for column in zip(*pairs))
            print(f"{batch:6}{new:6}{past:6}{stock_s * 1e3:12.2f}{own_s * 1e3:12.2f}{stock_s / own_s:8.2f}", flush=True)


if __name__ == "__main__":
    main()
