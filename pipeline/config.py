"""The schema of the whole configuration: one frozen dataclass a group, assembled from the stages' own.

Comes in: what Hydra composed, as plain values. Goes out: `Config`. Whatever a stage may be told stands in its own
`config.py`; here are the groups that belong to no stage.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pipeline.schema import read
from pipeline.search.config import SearchConfig
from pipeline.stages import plan
from pipeline.sweep.config import SweepConfig
from pipeline.tracking import TrackingConfig
from stages.autotune.config import AutotuneConfig
from stages.benchmark.config import BenchmarkConfig, EngineConfig
from stages.buffers.config import BuffersConfig
from stages.capture.config import CaptureConfig
from stages.codegen.config import CodegenConfig
from stages.fusion.config import FusionConfig
from stages.ir.errors import ConfigError, choose, require
from stages.precision.config import PrecisionConfig
from stages.rewrite.config import RewriteConfig
from stages.runtime.config import RuntimeConfig
from stages.validate.config import ValidateConfig

_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


@dataclass(frozen=True)
class InputConfig:
    """One tensor of the model's inputs, made anew for each seed.

    kind          token_ids   whole numbers, uniform in [low, high)
                  timestep    the same, of a diffusion schedule
                  integers    the same, of any meaning
                  image       standard normal numbers, as are those of normalised images
                  images      a list of images, uniform in [0, 1); the first size is their number
                  float       standard normal numbers
                  mask        ones
                  sentence_ids, sentence_mask   tokens of real sentences, and where they are (minilm)
    shape         sizes; dtype is torch's name
    placeholders  [value, count] each: from the second column on, so many columns of whole numbers hold that value (the
                  tokens in whose place a model puts what it made of an image)
    """

    kind: Literal[
        "token_ids", "timestep", "integers", "image", "images", "float", "mask", "sentence_ids", "sentence_mask"
    ]
    shape: tuple[int, ...]
    dtype: str = "float32"
    low: int = 0
    high: int | None = None
    placeholders: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        dtypes = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
        choose("model.inputs.*.dtype", self.dtype, dtypes)
        require(all(size >= 0 for size in self.shape), "model.inputs.*.shape", f"sizes below 0 in {list(self.shape)}")
        fits = all(len(pair) == 2 and pair[1] >= 0 for pair in self.placeholders)
        require(fits, "model.inputs.*.placeholders", f"wants pairs of value and count, not {list(self.placeholders)}")
        if self.kind in ("token_ids", "timestep", "integers"):
            require(self.high is not None, "model.inputs.*.high", f"is missing, which '{self.kind}' needs")
            require((self.high or 0) > self.low, "model.inputs.*.high", f"{self.high} is not above low={self.low}")


@dataclass(frozen=True)
class ModelConfig:
    """A model and its inputs.

    library        where it comes from: transformers, timm, torchvision, diffusers, minilm (its own PyPI package),
                   layers (described in `suite.yaml`), suite (as its entry there says) or custom
    architecture   the class of transformers and diffusers, timm's or torchvision's name, or the name of an entry
    config         what the architecture is built with, at its published sizes
    pretrained     the published weights' name on the Hugging Face hub; null where the library knows it or there is none
    subfolder      the folder of the weights there
    weights        pretrained (downloads), random (from the seed), auto: a local copy if there is one, else random
    path           custom: `package.module:factory`, a callable without arguments that returns the model (or a module)
    inputs         name -> how the tensor is made (a.b: the key b of a mapping a); positional: they are passed by
                   position, in this order
    call           constant keyword arguments of the call
    batch, sequence, image_size   what the shapes of `inputs` are made of; latents for a diffusion model
    size           of an entry of the suite: full, as published and measured, or smoke, of seconds on two CPU cores
    sizes          of an entry of the suite: in the place of the size's own numbers; null leaves them
    follow         numbers above that are a size by name, as `inputs.x.shape.0: batch`: what `conf/model` has as
                   `${model.batch}`. They follow it where it is set on top of a recipe
    """

    name: str
    library: Literal["transformers", "timm", "torchvision", "diffusers", "minilm", "layers", "suite", "custom"]
    architecture: str | None = None
    config: dict[str, Any] = field(default_factory=dict)
    pretrained: str | None = None
    subfolder: str | None = None
    weights: Literal["auto", "pretrained", "random"] = "auto"
    path: str | None = None
    inputs: dict[str, InputConfig] = field(default_factory=dict)
    positional: bool = False
    call: dict[str, Any] = field(default_factory=dict)
    batch: int = 1
    sequence: int | None = None
    image_size: int | None = None
    size: Literal["full", "smoke"] = "full"
    sizes: dict[str, int | None] = field(default_factory=dict)
    follow: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key in ("batch", "sequence", "image_size"):
            size = getattr(self, key)
            require(size is None or size >= 1, f"model.{key}", f"wants at least 1, not {size}")
        for word, number in self.sizes.items():
            require(number is None or number >= 1, f"model.sizes.{word}", f"wants at least 1, not {number}")
        require(re.fullmatch(r"[\w.-]+", self.name) is not None, "model.name", f"'{self.name}' is no plain name")
        if self.library == "custom":
            mend = "write model.path=package.module:factory, where factory() returns the model"
            require(self.path is not None, "model.path", "is missing, which model=custom needs", mend)
            require(
                _PATH.fullmatch(self.path or "") is not None, "model.path", f"'{self.path}' is no import path", mend
            )
            require(
                bool(self.inputs), "model.inputs", "is empty", "write +model.inputs.x='{kind: float, shape: [1, 8]}'"
            )
        else:
            require(self.path is None, "model.path", f"model={self.name} takes no path", "write model=custom")
        if self.library in ("transformers", "timm", "torchvision", "diffusers", "layers", "suite"):
            shape = r"[\w.]+" if self.library in ("timm", "torchvision") else _IDENTIFIER.pattern
            fits = re.fullmatch(shape, self.architecture or "") is not None
            require(fits, "model.architecture", f"'{self.architecture}' names nothing in {self.library}")
        if self.pretrained is not None:
            fits = _HUB_ID.fullmatch(self.pretrained) is not None
            require(fits, "model.pretrained", f"'{self.pretrained}' is no name of a model on the hub")
        fits = self.subfolder is None or re.fullmatch(r"[\w-]+(/[\w-]+)*", self.subfolder) is not None
        require(fits, "model.subfolder", f"'{self.subfolder}' is no folder of a model on the hub")
        _check_sizes("model.config", self.config)


def _check_sizes(key: str, value: Any) -> None:
    """Raise `ConfigError` on a key at any depth by which a library would load weights or code of its own accord."""
    if isinstance(value, (list, tuple)):
        for place, item in enumerate(value):
            _check_sizes(f"{key}[{place}]", item)
    elif isinstance(value, Mapping):
        for name, item in value.items():
            loads = any(word in name for word in _LOADS) and item not in (None, False)
            private = name.startswith("_") or name in _NOT_SIZES or loads
            mend = "model.weights says which weights to take"
            require(not private, f"{key}.{name}", "cannot be set here", mend)
            _check_sizes(f"{key}.{name}", item)


_NOT_SIZES = frozenset(
    (
        *("checkpoint_path", "pretrained_cfg", "pretrained_cfg_overlay", "cache_dir", "auto_map"),
        *("attn_implementation", "quantization_config", "trust_remote_code"),
    )
)
# Parts of names that libraries give to what they would load: nothing may be said there but no.
_LOADS = ("pretrained", "weights")


@dataclass(frozen=True)
class DeviceConfig:
    """kind: auto takes CUDA where there is a GPU. index: which GPU. threads: of the CPU; 0 leaves torch's number."""

    kind: Literal["auto", "cpu", "cuda"] = "auto"
    index: int = 0
    threads: int = 0

    def __post_init__(self) -> None:
        require(self.index >= 0, "device.index", f"wants at least 0, not {self.index}")
        require(self.threads >= 0, "device.threads", f"wants at least 0, not {self.threads}")


@dataclass(frozen=True)
class RecipeConfig:
    """path: name or path of the recipe that a run follows, as in recipe=NAME; strict: any difference is an error."""

    path: str | None = None
    strict: bool = False


@dataclass(frozen=True)
class Config:
    """Everything a run is told; see `conf/config.yaml`."""

    model: ModelConfig
    device: DeviceConfig
    engine: EngineConfig
    capture: CaptureConfig
    rewrite: RewriteConfig
    precision: PrecisionConfig
    fusion: FusionConfig
    buffers: BuffersConfig
    autotune: AutotuneConfig
    codegen: CodegenConfig
    runtime: RuntimeConfig
    validate: ValidateConfig
    benchmark: BenchmarkConfig
    tracking: TrackingConfig
    sweep: SweepConfig
    search: SearchConfig
    stages: tuple[str, ...]
    seed: int = 0
    debug: bool = False
    dump: bool = False
    recipe: RecipeConfig = RecipeConfig()
    trust: tuple[str, ...] = ()
    outputs: str = "outputs"
    job: str = "run"

    def __post_init__(self) -> None:
        plan(self.stages)
        require(0 <= self.seed < 2**63, "seed", f"{self.seed} is not between 0 and 2^63")
        require(re.fullmatch(r"[\w.-]+", self.job) is not None, "job", f"'{self.job}' is no plain name for a folder")


# The groups of `conf/`, as they are set by group=choice.
GROUPS = (
    *("model", "device", "engine", "capture", "rewrite", "precision", "fusion", "buffers", "autotune", "codegen"),
    *("runtime", "validate", "benchmark", "tracking", "sweep", "search", "experiment"),
)


def from_values(values: Mapping[str, Any]) -> Config:
    """`Config` of plain nested values. Raises `ConfigError` naming the key, what is wrong and the nearest valid one."""
    return read(Config, values, "")


def check_trust(config: Config, named: Mapping[str, Any]) -> None:
    """Raise `ConfigError` if code of the user's would run that the user did not name.

    named   the keys set on the command line (or passed to `optimize`): only there an import path is the user's own word
    """
    require(not config.trust or "trust" in named, "trust", "can be given on the command line only")
    path = config.model.path
    if path is None or "model.path" in named:
        return
    package = path.split(":")[0].split(".")[0]
    if package not in config.trust:
        raise ConfigError(
            "model.path",
            f"'{path}' comes from a file, and would run code of '{package}'",
            f"if you trust it, add trust=[{package}]",
        )
