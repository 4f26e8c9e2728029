"""ggml_rows.py NAME: llama-bench's lines of JSON as a line of text each."""

import json
import sys

for line in sys.stdin:
    run = json.loads(line)
    what = f"pp{run['n_prompt']}" if run["n_prompt"] else f"tg{run['n_gen']}"
    print(f"{sys.argv[1]}: {run['type_k']}, depth {run['n_depth']}, {what}: {run['avg_ts']:.1f} tokens/s", flush=True)
