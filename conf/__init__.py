"""The configuration: YAML, one folder a group. A package, so that it travels with an installation."""
