"""Lets Hydra compose `model=suite/<name>` from the one data file of the suite, with no YAML file for each entry.

Hydra asks its config sources, in the order of the search path, for `model/suite/<name>`; `conf/config.yaml` puts
`suite://` there. The names are not listed as choices of the group: `--help` would drown in them.
"""

from __future__ import annotations

from typing import Any

from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
from omegaconf import OmegaConf

GROUP = "model"
FOLDER = "suite"
_PREFIX = f"{GROUP}/{FOLDER}/"


class SuiteSource(ConfigSource):
    """`suite://`: a folder `model/suite` with an entry of the suite in the place of each file."""

    @staticmethod
    def scheme() -> str:
        return "suite"

    def load_config(self, config_path: str) -> ConfigResult:
        from pipeline.models.suite import choice

        name = _name(config_path)
        if name is None or not self.is_config(config_path):
            raise ConfigLoadError(f"there is no {config_path} in the suite")
        return ConfigResult(
            provider=self.provider,
            path=f"{self.scheme()}://{config_path}",
            config=OmegaConf.create(choice(name)),
            header={"package": GROUP},
        )

    def available(self) -> bool:
        return True

    def is_group(self, config_path: str) -> bool:
        return f"{config_path}/" in (f"{GROUP}/", _PREFIX)

    def is_config(self, config_path: str) -> bool:
        from pipeline.models.suite import entries

        name = _name(config_path)
        return name is not None and name in entries()

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        return []


def _name(config_path: str) -> str | None:
    """The entry that `model/suite/NAME` or `model/suite/NAME.yaml` names; None for any other path."""
    if not config_path.startswith(_PREFIX):
        return None
    return config_path.removeprefix(_PREFIX).removesuffix(".yaml")


def choices() -> list[str]:
    """`suite/<name>` for every entry."""
    from pipeline.models.suite import entries

    return [f"{FOLDER}/{name}" for name in entries()]


def register() -> None:
    """Make the source known to Hydra; more than once does no harm."""
    plugins: Any = Plugins.instance()
    plugins.register(SuiteSource)
