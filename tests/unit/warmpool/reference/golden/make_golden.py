"""Makes llama.json: what transformers' LlamaForCausalLM computes on the checkpoints of `test_model.py`.

`python tests/unit/warmpool/reference/golden/make_golden.py` writes the file beside itself. It is stored because importing
transformers takes longer than all these tests.
"""

import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from transformers import LlamaForCausalLM

from warmpool.reference.checkpoints import SHAPES, write_checkpoint
from warmpool.reference.config import RopeScaling

SEED = 7
TOKENS = 24
PROMPTS = [[256, 72], [256, *range(60, 100)], [256, *(33 + step * 17 % 90 for step in range(150))]]
TINY = SHAPES["tiny"]
VARIANTS = {
    "tiny": TINY,
    "tied-llama3": replace(
        TINY,
        tied=True,
        head_dim=64,
        kv_heads=3,
        rope_theta=500_000.0,
        rope_scaling=RopeScaling(
            factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_positions=64
        ),
    ),
}


def main() -> None:
    """Write llama.json."""
    golden = {}
    for name, config in VARIANTS.items():
        with tempfile.TemporaryDirectory() as directory:
            write_checkpoint(Path(directory), config, seed=SEED, shards=2)
            model = LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32)
        cases = []
        for prompt in PROMPTS:
            ids = torch.tensor([prompt])
            with torch.inference_mode():
                logits = model(ids).logits[0, -1]
                answer = model.generate(
                    ids, max_new_tokens=TOKENS, do_sample=False, eos_token_id=None, pad_token_id=258
                )
            cases.append(
                {
                    "prompt": prompt,
                    "logits": [round(value, 5) for value in logits.tolist()],
                    "tokens": answer[0, len(prompt) :].tolist(),
                }
            )
        golden[name] = cases
    Path(__file__).with_name("llama.json").write_text(json.dumps(golden) + "\n")
    sys.stdout.write(
        f"{ {name: [case['tokens'][:8] for case in cases] for name, cases in golden.items()} }\n"
    )


if __name__ == "__main__":
    main()
