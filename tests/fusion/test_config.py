"""The YAML of conf/fusion, and what is wrong with it in words."""

import pytest
from omegaconf import OmegaConf

from stages.fusion.config import FusionConfig, Rule
from stages.ir.errors import ConfigError
from tests.fusion.helpers import CONF, config


@pytest.mark.parametrize("name", ["none", "default", "aggressive"])
def test_files_have_exactly_the_keys_of_the_config(name):
    written = OmegaConf.load(CONF / f"{name}.yaml")
    assert set(written) == set(FusionConfig.__dataclass_fields__)
    made = config(name)
    assert all(isinstance(rule, Rule) for rule in made.rules)
    assert bool(made.rules) == (name != "none")


@pytest.mark.parametrize(
    ("changes", "key", "text"),
    [
        ({"max_ops": -1}, "fusion.max_ops", "must be 1 or more, not -1"),
        ({"max_inputs": 0}, "fusion.max_inputs", "must be 1 or more"),
        ({"max_expressions": 0}, "fusion.max_expressions", "must be 1 or more"),
        ({"library_epilogues": ["linear_unray"]}, "fusion.library_epilogues", "did you mean 'linear_unary'"),
        ({"rules": [Rule("a", ["pointwise"], ["pointwise"])] * 2}, "fusion.rules", "two rules are named a"),
    ],
)
def test_what_is_wrong_is_named(changes, key, text):
    with pytest.raises(ConfigError, match=text) as caught:
        FusionConfig(**changes)
    assert caught.value.key == key


@pytest.mark.parametrize(
    ("changes", "key", "text"),
    [
        ({"anchors": ["pointwsie"]}, "anchors", "did you mean 'pointwise'"),
        ({"siblings": ["extern"]}, "siblings", "there is no 'extern'"),
        ({"relations": ["row", "rows"]}, "relations", "did you mean 'row'"),
        ({"relations": []}, "relations", "is empty"),
        ({"anchors": []}, "anchors", "is empty"),
        ({"max_recompute": -1}, "max_recompute", "must be 0 or more"),
        ({"max_row": 0}, "max_row", "must be 1 or more"),
        ({"min_share": 1.5}, "min_share", "0 to 1"),
    ],
)
def test_what_is_wrong_with_a_rule_is_named(changes, key, text):
    with pytest.raises(ConfigError, match=text) as caught:
        Rule(**{"name": "r", "anchors": ["pointwise"], "producers": ["pointwise"], **changes})
    assert caught.value.key == f"fusion.rules[r].{key}"


def test_a_rule_that_absorbs_nothing_is_refused():
    with pytest.raises(ConfigError, match="absorbs nothing"):
        Rule("r", ["pointwise"])
