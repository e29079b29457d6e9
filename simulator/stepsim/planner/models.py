"""Models known by name. To add one: add a row with its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from stepsim.job import PRESETS, Transformer


class UnknownModel(ValueError):
    """A name that is none of a model."""


class PlannedTransformer(Transformer):
    """A transformer whose input embedding may be a matrix of its own, which no token is multiplied with."""

    untied: bool = False

    @property
    def logit_flops_per_token(self) -> float:
        """Forward and backward of the output matrix."""
        return 6.0 * self.vocabulary * self.hidden

    @property
    def flops_per_token(self) -> float:
        counted = super().flops_per_token
        return counted - 6.0 * self.vocabulary * self.hidden if self.untied else counted

    @property
    def layer_parameters(self) -> float:
        """Of one layer: all but the embeddings."""
        return (self.parameters - (1 + self.untied) * self.vocabulary * self.hidden) / self.layers


@dataclass(frozen=True, kw_only=True)
class NamedModel:
    shape: PlannedTransformer
    source: str


def _llama(name: str, parameters: float, layers: int, heads: int, sequence: int, vocabulary: int) -> NamedModel:
    shape = PlannedTransformer(
        name=name, parameters=parameters, layers=layers, heads=heads, head_dim=128, sequence=sequence,
        vocabulary=vocabulary, untied=True,
    )  # fmt: skip
    return NamedModel(shape=shape, source="config.json and weights of the released model")


def _megatron(name: str, layers: int, heads: int, head_dim: int) -> NamedModel:
    """Korthikanti et al., arXiv 2205.05198, table 3; parameters as Narayanan et al., arXiv 2104.04473, eq. 2."""
    hidden, sequence, vocabulary = heads * head_dim, 2048, 51_200
    parameters = 12.0 * layers * hidden**2 + 13 * layers * hidden + (vocabulary + sequence) * hidden
    shape = PlannedTransformer(
        name=name, parameters=parameters, layers=layers, heads=heads, head_dim=head_dim, sequence=sequence,
        vocabulary=vocabulary,
    )  # fmt: skip
    return NamedModel(shape=shape, source="arXiv 2205.05198, table 3")


def _presets() -> list[NamedModel]:
    shapes = [PlannedTransformer(**PRESETS[name].get("model", {})) for name in ("cluster", "laptop", "vision")]
    return [NamedModel(shape=shape, source="a preset of the simulator") for shape in shapes]


MODELS: Mapping[str, NamedModel] = {
    model.shape.name: model
    for model in (
        *_presets(),
        _llama("Llama 2 7B", 6_738_415_616, 32, 32, 4096, 32_000),
        _llama("Llama 2 13B", 13_015_864_320, 40, 40, 4096, 32_000),
        _llama("Llama 2 70B", 68_976_648_192, 80, 64, 4096, 32_000),
        _llama("Llama 3 8B", 8_030_261_248, 32, 32, 8192, 128_256),
        _llama("Llama 3 70B", 70_553_706_496, 80, 64, 8192, 128_256),
        _llama("Llama 3 405B", 405_853_388_800, 126, 128, 8192, 128_256),
        _megatron("Megatron 22B", 48, 64, 96),
        _megatron("GPT-3 175B", 96, 96, 128),
        _megatron("Megatron 530B", 105, 128, 160),
        _megatron("Megatron 1T", 128, 160, 160),
    )
}


def find_model(name: str) -> PlannedTransformer:
    """By name, whatever its case, spaces and hyphens."""
    found = {_plain(known): model.shape for known, model in MODELS.items()}
    if _plain(name) in found:
        return found[_plain(name)]
    close = [found[one].name for one in get_close_matches(_plain(name), found, n=3, cutoff=0.4)]
    raise UnknownModel(
        f"unknown model {name!r}; {'near it are' if close else 'there are'} {', '.join(close or MODELS)}"
    )


def canonical(name: str) -> str:
    """How a known model's name is written; any other name as it is."""
    return next((known for known in MODELS if _plain(known) == _plain(name)), name)


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def changed(model: Transformer, **changes: Any) -> PlannedTransformer:
    """The same with other dimensions. Those that are None stay. Validates."""
    given = {key: value for key, value in changes.items() if value is not None}
    return PlannedTransformer.model_validate({**model.model_dump(), **given})
