"""What a run was called with, as MLflow has it: a dataset among the run's inputs, with a schema of tensors.

Comes in: an `InputsRecord` as plain values, as `tracking.json` holds it. Goes out: a `DatasetInput` of MLflow's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

CONTEXT = "validation and timing"


def input_parameters(inputs: Mapping[str, Any]) -> dict[str, str]:
    """`inputs.input_ids: int64[8, 128]` for each tensor of a call."""
    return {f"inputs.{each['name']}": f"{each['dtype']}{list(each['shape'])}" for each in inputs["tensors"]}


def dataset_input(inputs: Mapping[str, Any]) -> Any:
    """The `mlflow.entities.DatasetInput` of one run.

    The values come from seeds, so the source is of MLflow's kind "code", and says what was drawn and from which seeds.
    """
    from mlflow.entities import Dataset, DatasetInput, InputTag

    tensors = inputs["tensors"]
    specs = [
        {
            "type": "tensor",
            "name": each["name"],
            "tensor-spec": {"dtype": each["dtype"], "shape": list(each["shape"])},
        }
        for each in tensors
    ]
    source = {
        "drawn_by": "torchweld",
        "seed": str(inputs["seed"]),
        "validation_seeds": ", ".join(map(str, inputs["validation_seeds"])),
        **{f"kind.{name}": kind for name, kind in inputs["kinds"].items()},
    }
    elements = sum(math.prod(each["shape"]) for each in tensors)
    sets = len({inputs["seed"], *inputs["validation_seeds"]})
    dataset = Dataset(
        name=inputs["name"],
        digest=inputs["digest"],
        source_type="code",
        source=json.dumps({"tags": source}),
        schema=json.dumps({"mlflow_tensorspec": {"features": json.dumps(specs), "targets": None}}),
        profile=json.dumps({"sets": sets, "elements_of_a_set": elements}),
    )
    return DatasetInput(dataset, [InputTag("mlflow.data.context", CONTEXT)])
