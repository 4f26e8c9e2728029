"""The engine in C (examples/engine) beside transformers with attune: the same requests, the same tokens."""

import os
import pathlib
import subprocess
import sys
import tempfile

import torch

from decoders import prompt, smollm2
from engine import Missing, Row, Way, attune_torch, attune_transformers, in_turns

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROMPT, MADE = 64, 64  # tokens


class Engine:
    """A process of the engine, which answers batch after batch."""

    def __init__(self, folder, threads):
        program = pathlib.Path(os.environ["ATTUNE_LIBRARY"]).parent / "examples" / "engine"
        if not program.exists():
            raise Missing(f"{program} (make {program})")
        subprocess.run([sys.executable, ROOT / "examples/engine/convert.py", folder], check=True)
        options = [program, folder, "--threads", str(threads), "--sequences", "8"]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(options, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)

    def answer(self, prompts):
        text = "".join(" ".join(map(str, [MADE, *tokens])) + "\n" for tokens in prompts)
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()
        return [[int(token) for token in self.process.stdout.readline().split()] for _ in prompts]

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def row(requests, goal):
    """`stock` is transformers with attune's attention and caches, all requests as one batch of equal lengths."""

    def run(threads, seconds):
        module, model = attune_transformers(), smollm2("f32")
        prompts = prompt(PROMPT * requests).reshape(requests, PROMPT)
        options = {"max_new_tokens": MADE, "min_new_tokens": MADE, "do_sample": False, "pad_token_id": 0}

        def switch():
            attune_torch().disable()
            model.set_attn_implementation("attune")

        def by_transformers():
            made = model.generate(prompts, attention_mask=torch.ones_like(prompts),
                                  past_key_values=module.AttuneCache(config=model.config), **options)
            return made[:, PROMPT:].tolist()

        switch()
        with tempfile.TemporaryDirectory() as folder:
            engine = Engine(folder, threads)
            same = by_transformers() == engine.answer(prompts.tolist())
            if not same:
                return {"problem": "other tokens"}
            ours = Way(lambda: None, lambda: engine.answer(prompts.tolist()), MADE)
            found = in_turns(Way(switch, by_transformers, MADE), ours, seconds)
            engine.close()
        return found

    return Row(f"C engine beside transformers with attune, {requests} × ({PROMPT} + {MADE}) tokens", goal, run)


ROWS = [row(8, 1.5), row(1, None)]
