"""Text by a model of transformers, with attune's attention and with a cache that is appended in place.

    pip install ./python torch transformers            (and gguf accelerate for a .gguf file)
    python3 examples/python/transformers_generate.py FOLDER [FILE.gguf] ["The beginning of a text"]

FOLDER is a folder or a name that from_pretrained() takes.
"""

import sys
import time

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import attune.transformers

if len(sys.argv) < 2:
    sys.exit(__doc__)
arguments = sys.argv[2:]
gguf = {"gguf_file": arguments.pop(0)} if arguments and arguments[0].endswith(".gguf") else {}
text = arguments[0] if arguments else "The history of the bicycle begins with"

attune.transformers.register()
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1], **gguf)
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32, **gguf).eval()
inputs = tokenizer(text, return_tensors="pt")

for implementation in ("sdpa", "attune"):
    model.set_attn_implementation(implementation)
    cache = attune.transformers.AttuneCache(model.config) if implementation == "attune" else None
    begin = time.perf_counter()
    output = model.generate(**inputs, max_new_tokens=64, do_sample=False, past_key_values=cache)
    print(f"{implementation}: {time.perf_counter() - begin:.2f} s\n{tokenizer.decode(output[0])}\n")
print(attune.transformers.stats())
