"""Kubernetes objects as YAML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainband.errors import YourError


def to_yaml(objects: Sequence[Mapping[str, Any]]) -> str:
    """Returns the objects as `kubectl apply -f -` reads them.

    Raises:
      YourError: PyYAML is not installed.
    """
    try:
        import yaml  # optional
    except ModuleNotFoundError as exc:
        raise YourError(
            "writing manifests needs PyYAML, which is not installed: pip install 'trainband[kubernetes]'."
        ) from exc

    class Dumper(yaml.SafeDumper):  # type: ignore[misc]  # PyYAML has no types
        """Dumper without anchors, which people dislike, and with lists indented as in the Kubernetes docs."""

        def ignore_aliases(self, _data: object) -> bool:
            return True

    text: str = yaml.dump_all(list(objects), Dumper=Dumper, sort_keys=False, default_flow_style=False, width=1000)
    return text
