"""The optimizers of `tf.train`: the arguments of each, and which formula it applies."""

from __future__ import annotations

from typing import Any

from trainband.compat.ops import update_rules as rules
from trainband.compat.ops.update_rules import Rule
from trainband.compat.tf1.graphs.graph import get_default_graph
from trainband.compat.tf1.graphs.variable import Variable
from trainband.compat.tf1.training.rule_optimizer import RuleOptimizer
from trainband.runtime.overrides import override


class GradientDescentOptimizer(RuleOptimizer):
    """Gradient descent."""

    def __init__(self, learning_rate: Any, use_locking: bool = False, name: str = "GradientDescent") -> None:
        super().__init__(learning_rate, use_locking, name)

    @override
    def rule(self) -> Rule:
        return rules.GradientDescent(type="ApplyGradientDescent")


class MomentumOptimizer(RuleOptimizer):
    """Gradient descent with momentum, Nesterov's if asked for."""

    def __init__(
        self,
        learning_rate: Any,
        momentum: Any,
        use_locking: bool = False,
        name: str = "Momentum",
        use_nesterov: bool = False,
    ) -> None:
        super().__init__(learning_rate, use_locking, name)
        self._momentum, self._nesterov = momentum, use_nesterov

    @override
    def rule(self) -> Rule:
        return rules.Momentum(
            type="ApplyMomentum", slots=[("momentum", 0.0)], by_row=True, settings={"nesterov": self._nesterov}
        )

    @override
    def hyper(self) -> dict[str, Any]:
        return {"learning_rate": self.learning_rate, "momentum": self._momentum}


class AdamOptimizer(RuleOptimizer):
    """Adam, with epsilon hat."""

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta1: Any = 0.9,
        beta2: Any = 0.999,
        epsilon: Any = 1e-8,
        use_locking: bool = False,
        name: str = "Adam",
    ) -> None:
        super().__init__(learning_rate, use_locking, name)
        self._numbers = {"beta1": beta1, "beta2": beta2, "epsilon": epsilon}

    @override
    def rule(self) -> Rule:
        shared = [("beta1_power", "beta1"), ("beta2_power", "beta2")]
        return rules.Adam(type="ApplyAdam", slots=[("m", 0.0), ("v", 0.0)], shared=shared)

    def _get_beta_accumulators(self) -> tuple[Variable, Variable]:  # scripts initialise them by themselves
        graph = get_default_graph()
        return self._shared[graph, "beta1_power"], self._shared[graph, "beta2_power"]

    @override
    def hyper(self) -> dict[str, Any]:
        return {"learning_rate": self.learning_rate, **self._numbers}


class AdagradOptimizer(RuleOptimizer):
    """Adagrad."""

    def __init__(
        self,
        learning_rate: Any,
        initial_accumulator_value: float = 0.1,
        use_locking: bool = False,
        name: str = "Adagrad",
    ) -> None:
        if initial_accumulator_value <= 0.0:
            raise ValueError(f"initial_accumulator_value must be positive: {initial_accumulator_value}")
        super().__init__(learning_rate, use_locking, name)
        self._first = initial_accumulator_value

    @override
    def rule(self) -> Rule:
        return rules.Adagrad(type="ApplyAdagrad", slots=[("accumulator", self._first)], by_row=True)


class AdadeltaOptimizer(RuleOptimizer):
    """Adadelta."""

    def __init__(
        self,
        learning_rate: Any = 0.001,
        rho: Any = 0.95,
        epsilon: Any = 1e-8,
        use_locking: bool = False,
        name: str = "Adadelta",
    ) -> None:
        super().__init__(learning_rate, use_locking, name)
        self._numbers = {"rho": rho, "epsilon": epsilon}

    @override
    def rule(self) -> Rule:
        return rules.Adadelta(type="ApplyAdadelta", slots=[("accum", 0.0), ("accum_update", 0.0)], by_row=True)

    @override
    def hyper(self) -> dict[str, Any]:
        return {"learning_rate": self.learning_rate, **self._numbers}


class RMSPropOptimizer(RuleOptimizer):
    """RMSProp."""

    def __init__(
        self,
        learning_rate: Any,
        decay: Any = 0.9,
        momentum: Any = 0.0,
        epsilon: Any = 1e-10,
        use_locking: bool = False,
        centered: bool = False,
        name: str = "RMSProp",
    ) -> None:
        super().__init__(learning_rate, use_locking, name)
        self._numbers = {"decay": decay, "momentum": momentum, "epsilon": epsilon}
        self._centered = centered

    @override
    def rule(self) -> Rule:
        slots = [("rms", 1.0), *([("mg", 0.0)] if self._centered else []), ("momentum", 0.0)]
        return rules.RMSProp(type="ApplyRMSProp", slots=slots, by_row=True, settings={"centered": self._centered})

    @override
    def hyper(self) -> dict[str, Any]:
        return {"learning_rate": self.learning_rate, **self._numbers}


class FtrlOptimizer(RuleOptimizer):
    """Ftrl-proximal."""

    def __init__(
        self,
        learning_rate: Any,
        learning_rate_power: float = -0.5,
        initial_accumulator_value: float = 0.1,
        l1_regularization_strength: float = 0.0,
        l2_regularization_strength: float = 0.0,
        use_locking: bool = False,
        name: str = "Ftrl",
        accum_name: str | None = None,  # noqa: ARG002
        linear_name: str | None = None,  # noqa: ARG002
        l2_shrinkage_regularization_strength: float = 0.0,
    ) -> None:
        super().__init__(learning_rate, use_locking, name)
        self._first = initial_accumulator_value
        self._numbers = {
            "learning_rate_power": learning_rate_power,
            "l1": l1_regularization_strength,
            "l2": l2_regularization_strength,
            "l2_shrinkage": l2_shrinkage_regularization_strength,
        }

    @override
    def rule(self) -> Rule:
        return rules.Ftrl(type="ApplyFtrl", slots=[("accum", self._first), ("linear", 0.0)], by_row=True)

    @override
    def hyper(self) -> dict[str, Any]:
        return {"learning_rate": self.learning_rate, **self._numbers}


class ProximalGradientDescentOptimizer(RuleOptimizer):
    """Gradient descent with a proximal step."""

    def __init__(
        self,
        learning_rate: Any,
        l1_regularization_strength: float = 0.0,
        l2_regularization_strength: float = 0.0,
        use_locking: bool = False,
        name: str = "ProximalGradientDescent",
    ) -> None:
        super().__init__(learning_rate, use_locking, name)
        self._numbers = {"l1": l1_regularization_strength, "l2": l2_regularization_strength}

    @override
    def rule(self) -> Rule:
        return rules.ProximalGradientDescent(type="ApplyProximalGradientDescent", by_row=True)

    @override
    def hyper(self) -> dict[str, Any]:
        return {"learning_rate": self.learning_rate, **self._numbers}


class ProximalAdagradOptimizer(RuleOptimizer):
    """Adagrad with a proximal step."""

    def __init__(
        self,
        learning_rate: Any,
        initial_accumulator_value: float = 0.1,
        l1_regularization_strength: float = 0.0,
        l2_regularization_strength: float = 0.0,
        use_locking: bool = False,
        name: str = "ProximalAdagrad",
    ) -> None:
        if initial_accumulator_value <= 0.0:
            raise ValueError(f"initial_accumulator_value must be positive: {initial_accumulator_value}")
        super().__init__(learning_rate, use_locking, name)
        self._first = initial_accumulator_value
        self._numbers = {"l1": l1_regularization_strength, "l2": l2_regularization_strength}

    @override
    def rule(self) -> Rule:
        return rules.ProximalAdagrad(type="ApplyProximalAdagrad", slots=[("accumulator", self._first)], by_row=True)

    @override
    def hyper(self) -> dict[str, Any]:
        return {"learning_rate": self.learning_rate, **self._numbers}


class AdagradDAOptimizer(RuleOptimizer):
    """Adagrad by dual averaging.

    Args:
      global_step: how many steps have been made; the regularizers grow with it.
    """

    def __init__(
        self,
        learning_rate: Any,
        global_step: Any,
        initial_gradient_squared_accumulator_value: float = 0.1,
        l1_regularization_strength: float = 0.0,
        l2_regularization_strength: float = 0.0,
        use_locking: bool = False,
        name: str = "AdagradDA",
    ) -> None:
        if initial_gradient_squared_accumulator_value <= 0.0:
            raise ValueError("initial_gradient_squared_accumulator_value must be positive.")
        super().__init__(learning_rate, use_locking, name)
        self._step, self._first = global_step, initial_gradient_squared_accumulator_value
        self._numbers = {"l1": l1_regularization_strength, "l2": l2_regularization_strength}

    @override
    def rule(self) -> Rule:
        slots = [("gradient_accumulator", 0.0), ("gradient_squared_accumulator", self._first)]
        return rules.AdagradDA(type="ApplyAdagradDA", slots=slots, by_row=True)

    @override
    def hyper(self) -> dict[str, Any]:
        return {"learning_rate": self.learning_rate, "global_step": lambda: self._step + 1, **self._numbers}
