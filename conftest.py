"""The integrations are imported by tests only where their frameworks are installed: make test-integrations."""

from importlib.util import find_spec

FRAMEWORKS = ("lightning", "transformers", "accelerate", "skorch")

collect_ignore = [f"src/inface/integrations/{name}.py" for name in FRAMEWORKS if find_spec(name) is None]
