"""Which version of TensorFlow a script is written for: what it imports and uses decides, without running it.

The rules, in this order:

1. `disable_v2_behavior` or `disable_eager_execution`: 1.
2. A name that only version 1 has, by its own name (`tf.Session`, `tf.contrib`): 1. Names that the script tries
   (`try: tf.Session`), or for which it asks first (`if tf.__version__ ...`, `hasattr`), say nothing.
3. A name that only version 2 has (`tf.GradientTape`, `tf.distribute`, `tf.random.set_seed`): 2.
4. Graphs and sessions by `tf.compat.v1` (`tf.compat.v1.Session`): 1.
5. `tf.keras`: 2.
6. `import tensorflow.compat.v1`, without the plain module: 1.
7. A loop over a dataset (`for x in tf.data.Dataset...`), or `.numpy()`, which need eager tensors: 2.
8. Whatever else: 2 if a name exists only in that front end, and else 1.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from trainband.compat.faces import Face, face_of
from trainband.compat.sources import guarded

_SWITCHES = {"disable_v2_behavior", "disable_eager_execution"}
_EAGER = {"enable_eager_execution", "enable_v2_behavior"}
_ONLY_1 = (
    "contrib app flags gfile logging layers python_io estimator resource_loader user_ops distributions Session "
    "InteractiveSession placeholder placeholder_with_default sparse_placeholder ConfigProto GPUOptions get_variable "
    "variable_scope get_default_graph reset_default_graph global_variables_initializer initialize_all_variables "
    "local_variables_initializer global_variables trainable_variables add_to_collection get_collection set_random_seed "
    "truncated_normal random_normal random_uniform to_float to_int32 to_int64 log div sparse_tensor_to_dense py_func "
    "assign assign_add assign_sub train.Server train.replica_device_setter train.Supervisor train.Saver train.Scaffold "
    "train.MonitoredTrainingSession train.MonitoredSession train.SyncReplicasOptimizer train.get_global_step "
    "train.get_or_create_global_step train.create_global_step train.global_step train.batch train.shuffle_batch "
    "train.string_input_producer train.exponential_decay train.start_queue_runners train.QueueRunner "
    "train.SessionRunHook train.StopAtStepHook train.LoggingTensorHook train.CheckpointSaverHook train.NanTensorHook "
    "train.write_graph train.import_meta_graph train.export_meta_graph summary.FileWriter summary.merge_all "
    "summary.merge nn.rnn_cell nn.dynamic_rnn nn.static_rnn nn.bidirectional_dynamic_rnn get_default_session "
    "nn.softmax_cross_entropy_with_logits_v2 nn.xw_plus_b saved_model.builder saved_model.simple_save "
    "saved_model.loader RunOptions RunMetadata GraphOptions summary.FileWriterCache losses.get_total_loss "
    "losses.sparse_softmax_cross_entropy losses.softmax_cross_entropy metrics.accuracy Print Dimension "
    "sparse_to_dense matrix_inverse batch_matmul mul sub neg pack unpack scalar_summary image_summary "
    "histogram_summary merge_all_summaries"
).split()
_ONLY_2 = (
    "distribute GradientTape function random.set_seed data.AUTOTUNE optimizers losses.Loss "
    "config.list_physical_devices config.experimental.list_physical_devices config.set_visible_devices "
    "config.list_logical_devices summary.create_file_writer summary.record_if train.Checkpoint "
    "train.CheckpointManager data.experimental.AutoShardPolicy keras.optimizers.legacy keras.mixed_precision "
    "keras.utils.set_random_seed "
).split()
_GRAPHS = {
    "Session",
    "InteractiveSession",
    "placeholder",
    "get_variable",
    "variable_scope",
    "global_variables_initializer",
    "train.MonitoredTrainingSession",
    "train.Supervisor",
    "train.Server",
    "estimator",
}


@dataclass(frozen=True, slots=True)
class Choice:
    """The version that is chosen.

    Attributes:
      number: 1 or 2.
      reason: what decided, in words; "" if nothing did.
    """

    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class _Use:
    path: str
    line: int
    is_tried: bool
    file: Path

    def shown(self, script: Path) -> str:
        where = f"line {self.line}" if self.file == script else f"{self.file.name}:{self.line}"
        return f"{self.path} at {where}"


def choose(trees: Mapping[Path, ast.Module]) -> Choice:
    """Choose the version for a script, whose file comes first; see the module for the rules."""
    script = next(iter(trees), Path())
    uses = [use for path, tree in trees.items() for use in sorted(_uses(path, tree), key=lambda use: use.line)]
    firm = [use for use in uses if not use.is_tried]
    plain = [use for use in firm if not use.path.startswith("tf.compat.v1")]
    old = [use for use in firm if use.path.startswith("tf.compat.v1.")]
    first, second = face_of(1), face_of(2)

    def decided(number: int, use: _Use) -> Choice:
        return Choice(number, use.shown(script))

    for use in firm:
        if use.path.rpartition(".")[2] in _SWITCHES:
            return decided(1, use)
    eager = next((use for use in firm if use.path.rpartition(".")[2] in _EAGER), None)
    if found := next((use for use in plain if _is_of(use.path, _ONLY_1) or _is_optimizer(use.path)), None):
        return decided(1, found) if eager is None else decided(2, eager)
    if eager is not None:
        return decided(2, eager)
    if found := next((use for use in plain if _is_of(use.path, _ONLY_2)), None):
        return decided(2, found)
    for use in old:
        bare = use.path.removeprefix("tf.compat.v1.")
        if bare in _GRAPHS or bare.partition(".")[0] == "estimator" or _is_optimizer(f"tf.{bare}"):
            return decided(1, use)
    if found := next((use for use in firm if use.path.startswith("tf.keras")), None):
        return decided(2, found)
    if old and not any(use.path == "tf" for use in uses):
        return Choice(1, f"import {old[0].path}" if old[0].path == "tf.compat.v1" else old[0].shown(script))
    for path, tree in trees.items():
        if found := next(_eager_uses(path, tree), None):
            return decided(2, found)
    for use in plain:
        if _is_only_in(use.path, second, first):
            return decided(2, use)
    return Choice(1, "")


def _is_of(path: str, names: list[str]) -> bool:
    bare = path.removeprefix("tf.")
    return any(bare == name or bare.startswith(f"{name}.") for name in names)


def _is_optimizer(path: str) -> bool:
    return path.startswith("tf.train.") and path.endswith("Optimizer")


def _is_only_in(path: str, one: Face, other: Face) -> bool:
    return one.look_up(path) is None and other.look_up(path) is not None


def _uses(file: Path, tree: ast.Module) -> Iterator[_Use]:
    """Yield what a file uses of TensorFlow: `tf` for the import of the module, and dotted names."""
    tried = {*guarded(tree), *_asked(tree)}
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        for name, path in _imported(node):
            if path == "tf" or not aliases.get(name, "").startswith("tf.compat.v1"):
                aliases[name] = path if aliases.get(name) != "tf.compat.v1" else "tf.compat.v1"
            yield _Use(path, getattr(node, "lineno", 0), node in tried and path != "tf.compat.v1", file)
    for attribute, path in _dotted(tree, aliases):
        yield _Use(path, attribute.lineno, attribute in tried, file)


def _dotted(tree: ast.AST, aliases: Mapping[str, str]) -> Iterator[tuple[ast.Attribute, str]]:
    """Yield the dotted names that begin with an alias."""
    inner: set[ast.AST] = set()
    for node in ast.walk(tree):
        if node in inner or not isinstance(node, ast.Attribute):
            continue
        parts: list[str] = []
        part: ast.AST = node
        while isinstance(part, ast.Attribute):
            parts.append(part.attr)
            part = part.value
            inner.add(part)
        if isinstance(part, ast.Name) and part.id in aliases:
            path = ".".join([aliases[part.id], *reversed(parts)])
            yield node, path.replace("tf.compat.v2.", "tf.", 1)


def _eager_uses(file: Path, tree: ast.Module) -> Iterator[_Use]:
    """Yield what a file does that only eager tensors can: loops over datasets, and `.numpy()`."""
    aliases = dict(pair for node in ast.walk(tree) for pair in _imported(node))
    if not aliases:
        return
    datasets = {node for node, path in _dotted(tree, aliases) if path.startswith("tf.data.")}
    names: set[str] = set()

    def is_dataset(value: ast.AST) -> bool:
        return any(node in datasets or (isinstance(node, ast.Name) and node.id in names) for node in ast.walk(value))

    before = -1
    while before != len(names):  # a name may be that of a function which is defined below
        before = len(names)
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and is_dataset(node.value):
                names |= {one.id for target in node.targets for one in ast.walk(target) if isinstance(one, ast.Name)}
            elif isinstance(node, ast.FunctionDef):
                returned = [one.value for one in ast.walk(node) if isinstance(one, ast.Return) and one.value]
                names |= {node.name} if any(map(is_dataset, returned)) else set()
    for node in ast.walk(tree):
        if isinstance(node, ast.For | ast.comprehension) and is_dataset(node.iter):
            yield _Use("a loop over a dataset", node.iter.lineno, False, file)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "numpy":
            yield _Use(".numpy()", node.lineno, False, file)


def _imported(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield the names that a statement gives to modules and names of TensorFlow."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            root, _, rest = alias.name.partition(".")
            if root == "tensorflow":
                yield (alias.asname, f"tf.{rest}".rstrip(".")) if alias.asname else (root, "tf")
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        root, _, rest = node.module.partition(".")
        if root == "tensorflow" and "python" not in rest:
            for alias in node.names:
                yield alias.asname or alias.name, ".".join(filter(None, ["tf", rest, alias.name]))


def _asked(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield what is used only after asking for the version, or whether it is there."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.IfExp):
            words = {one.attr for one in ast.walk(node.test) if isinstance(one, ast.Attribute)}
            words |= {one.id for one in ast.walk(node.test) if isinstance(one, ast.Name)}
            if words & {"__version__", "VERSION", "hasattr", "executing_eagerly"}:
                yield from ast.walk(node)
