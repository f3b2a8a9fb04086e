"""mistral.rs: the float model, quantized while it is loaded.

It takes texts and answers with texts, so a tokenizer with a word for each token stands before it, and it tells its own
times, in milliseconds. Several sequences at once end in an error of its quantized output projection.
"""

# /// script
# dependencies = ["mistralrs==0.9.5"]
# ///

import json
import tempfile
from functools import lru_cache
from pathlib import Path

import mistralrs
import numpy as np

# Written after the tokens before: one has about the resolution of the clock.
WRITTEN = 16


class Model:
    def __init__(self, folder, format):
        self.vocabulary = json.loads(Path(folder, "config.json").read_text())["vocab_size"]
        words = {word(token): token for token in range(self.vocabulary)}
        tokenizer = {
            "version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "WhitespaceSplit"},
            # Never asked, but the tokens are read by its rules.
            "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            "model": {"type": "WordLevel", "vocab": words, "unk_token": word(0)},
        }
        template = {"chat_template": "{{ messages[0].content }}", "eos_token": word(0)}
        with tempfile.TemporaryDirectory() as model:
            for file in Path(folder).iterdir():
                Path(model, file.name).symlink_to(file)
            for name, content in ("tokenizer.json", tokenizer), ("tokenizer_config.json", template):
                Path(model, name).write_text(json.dumps(content))
            self.runner = mistralrs.Runner(
                mistralrs.Which.Plain(model, mistralrs.Architecture.Llama, dtype=mistralrs.ModelDType.F32),
                in_situ_quant=format, prefix_cache_n=0,
            )


class Reader:
    """Reads `ids` after `before`, of one sequence: log probabilities of the token behind them."""

    def __init__(self, model, before, ids, write):
        self.model, self.is_prompt, self.write = model, not before.size, write
        self.prompt = " ".join(word(token) for token in (*before.flat, *ids.flat))

    def __call__(self):
        """None of a text, whose tokens are not compared."""
        if self.write:
            return np.zeros(0, np.float32)
        request = mistralrs.ChatCompletionRequest(
            self.prompt, "default", max_tokens=1, temperature=0.0, logprobs=True, top_logprobs=self.model.vocabulary
        )
        (choice,) = self.model.runner.send_chat_completion_request(request).choices
        scores = np.empty(self.model.vocabulary, np.float32)
        for entry in choice.logprobs.content[0].top_logprobs:
            scores[entry.token] = entry.logprob
        return scores[None, None]

    def microseconds(self):
        """Of the prompt, of a token behind it, or of the prompt and a text behind it."""
        written = self.write or (1 if self.is_prompt else 1 + WRITTEN)
        request = mistralrs.CompletionRequest(
            self.prompt, "default", max_tokens=written, temperature=0.0, ignore_eos=True
        )
        usage = self.model.runner.send_completion_request(request).usage
        if self.write:
            return 1e6 * (usage.total_prompt_time_sec + usage.total_completion_time_sec)
        return 1e6 * (usage.total_prompt_time_sec if self.is_prompt else usage.total_completion_time_sec / WRITTEN)


def word(token):
    return f"t{token}"


@lru_cache(1)
def model(folder, format):
    return Model(folder, format)


def decoder(case, tensors):
    ids = tensors["ids"]
    before = tensors.get("before", ids[:, :0])
    if case["every"] or len(ids) > 1:
        return {}
    # The fastest; others are slower by a multiple, and each takes the memory of the floats while it is loaded.
    name = "Q4_K" if "Q4_K" in case["files"] else "Q4_0"
    return {f"mistral.rs {name}": Reader(model(case["folder"], name.replace("Q4_K", "Q4K")), before, ids, case["write"])}
