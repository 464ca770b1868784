"""What `Trainer.fit` does beside the steps."""

from __future__ import annotations

from typing import Any

import pytest
from tests.train.fakes import A

from trainband.errors import DataError
from trainband.train.fitting import Fitting
from trainband.train.hooks import EarlyStopping, Hook, StepProfileHook, StopAtStepHook, ValidationHook


class Own(Hook):
    """The user's."""


@pytest.mark.parametrize(
    ("settings", "kinds"),
    [
        ({"steps": None}, [Own]),
        ({"steps": 5}, [StopAtStepHook, Own]),
        ({"steps": 5, "validation": [A]}, [StopAtStepHook, ValidationHook, Own]),
        ({"steps": None, "profile_steps": (2, 4)}, [Own, StepProfileHook]),
    ],
)
def test_hooks_are_what_the_arguments_ask_for(settings: dict[str, Any], kinds: list[type[Hook]]) -> None:
    fitting = Fitting(settings.pop("steps"), [Own()], **settings)
    assert [type(hook) for hook in fitting.hooks] == kinds
    assert fitting.evaluations == ()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"steps": -1}, "steps must be a whole number"),
        ({"steps": 2.0}, "steps must be a whole number"),
        ({"steps": None, "early_stopping": EarlyStopping()}, "early_stopping needs a validation"),
    ],
)
def test_refuses(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        Fitting(settings.pop("steps"), [], **settings)
