"""llama_cpp_python.py MODEL: a prompt through llama-cpp-python without attune, then with it. Answers begin alike; later
tokens may differ, because a small model turns a change of the last bits into another word."""

import sys

import llama_cpp

import attune.ggml

TEXT = open("docs/promises.md", encoding="utf-8").read()[:3000] + "\nSummary:"


def tokens() -> list:
    """Those that follow TEXT."""
    model = llama_cpp.Llama(sys.argv[1], n_ctx=1024, n_threads=2, flash_attn=True, verbose=False)
    made = []
    for token in model.generate(model.tokenize(TEXT.encode()), temp=0):
        made.append(token)
        if len(made) == 24:
            break
    return made


before = tokens()
attune.ggml.load()
attune.ggml.load()  # changes nothing
after = tokens()
same = next((i for i, (a, b) in enumerate(zip(before, after)) if a != b), len(before))
print(f"llama-cpp-python: the first {same} of {len(before)} tokens are the same")
sys.exit(same < 4)
