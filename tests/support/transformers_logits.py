"""What transformers computes for a model folder. As a script it writes tests/data/hf/logits.json anew.

It needs transformers and torch: pip install 'openloop[reference-tests]', then, in the repository,
`python tests/support/transformers_logits.py`.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np

TOKEN_IDS = [(7 * i * i + 3 * i + 1) % 48 for i in range(40)]
POSITIONS = (0, 1, 5, 17, 39)  # kept in the file; from 24 on the scaling of llama-3 matters
FILE = Path(__file__).parent.parent / "data" / "hf" / "logits.json"


def logits(folder: Path, token_ids: list[int]) -> np.ndarray:
    """[positions, vocab], float32, computed on the CPU with the plainest attention there is."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        computed: np.ndarray = model(torch.tensor([token_ids])).logits[0].numpy()
    return computed


def main() -> None:
    """Write the logits of every model at POSITIONS."""
    import torch
    import transformers
    from support.hf_folder import MODELS, write_model

    made = {}
    for name, config in MODELS.items():
        with tempfile.TemporaryDirectory() as temporary:
            write_model(Path(temporary), config)
            rows = logits(Path(temporary), TOKEN_IDS)[list(POSITIONS)]
        made[name] = [[float(f"{value:.7g}") for value in row] for row in rows.tolist()]
    versions = {"transformers": transformers.__version__, "torch": torch.__version__, "numpy": np.__version__}
    FILE.write_text(json.dumps({"made_with": versions, "positions": POSITIONS, "logits": made}) + "\n")
    print(f"{FILE}: {FILE.stat().st_size} bytes")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    main()
