"""Options of datasets, which scripts set for TensorFlow's optimiser of pipelines. They change nothing here."""

from __future__ import annotations

from typing import Any


class Options:
    """Holds whatever is set; groups of options such as `experimental_threading` come into being when used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        group = Options()
        setattr(self, name, group)
        return group

    def merge(self, options: Options) -> Options:
        """Options with those of another, which take precedence."""
        found = Options()
        found.__dict__.update({**self.__dict__, **options.__dict__})
        return found
