"""Commands beside the run itself, which an installed torchweld has too: `python -m pipeline.commands.<name>`."""
