"""Objects of Kubernetes as YAML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainband.errors import YourError


def to_yaml(objects: Sequence[Mapping[str, Any]]) -> str:
    """The objects as `kubectl apply -f -` reads them.

    Raises:
      YourError: PyYAML is not installed.
    """
    try:
        import yaml  # of an extra
    except ModuleNotFoundError as exc:
        raise YourError(
            "manifests are written with PyYAML, which is not installed: pip install 'trainband[kubernetes]'."
        ) from exc

    class Dumper(yaml.SafeDumper):  # type: ignore[misc]  # PyYAML has no types
        """Without anchors, which Kubernetes reads and people do not like; lists indented as in Kubernetes' pages."""

        def ignore_aliases(self, _data: object) -> bool:
            return True

    text: str = yaml.dump_all(list(objects), Dumper=Dumper, sort_keys=False, default_flow_style=False, width=1000)
    return text
