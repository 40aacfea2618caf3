"""Models and their inputs, by the data of `conf/model/*.yaml`."""

from pipeline.models.load import Model, load

__all__ = ["Model", "load"]
