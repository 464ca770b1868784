"""`tf.saved_model`: an object as a directory of its variables and of its functions, as programs.

`saved_model.json` says which functions and objects there are; `variables/variables.safetensors` has the values, and
`functions/` the programs. A model of Keras's is there in Keras's own format, too.
"""

from __future__ import annotations

import inspect
import json
import logging
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from trainband.checkpoint.manifest import is_plain_name
from trainband.compat.tf2.eager.function import ConcreteFunction, Function, TensorSpec
from trainband.compat.tf2.eager.module import Module
from trainband.compat.tf2.eager.variable import Variable
from trainband.compat.tf2.saving.exported import LoadedFunction, NotExported, Record, as_signature, exported
from trainband.compat.tf2.saving.snapshot import Restoration, Snapshot, path_of, write
from trainband.compat.tf2.saving.trackable import children, is_layer, is_trackable, is_variable, walk
from trainband.runtime.regular_files import UnusableFile, read_regular, write_regular

_log = logging.getLogger(__name__)
DEFAULT = "serving_default"
_INDEX = "saved_model.json"
_KERAS = "model.keras"
_DAMAGE = (UnusableFile, LookupError, TypeError, ValueError, AttributeError, RuntimeError, AssertionError, struct.error)
"""Errors of reading invalid JSON or JAX programs; a RecursionError is a RuntimeError."""
MOST_INDEX_BYTES = 256 << 20
MOST_PROGRAM_BYTES = 2 << 30


class SaveOptions:
    """How a model is saved. This changes nothing."""

    def __init__(self, *_: Any, **settings: Any) -> None:
        self.__dict__.update(settings)


class LoadOptions(SaveOptions):
    """How a model is loaded. This changes nothing."""


def save(obj: Any, export_dir: Any, signatures: Any = None, options: Any = None) -> None:
    """Write an object: its variables, its functions with a signature, and the signatures that are given.

    Raises:
      ValueError: the object cannot be followed, or a function cannot be a program.
    """
    del options
    if not is_trackable(obj):
        raise ValueError(f"Expected an object of type `Trackable`, such as `tf.Module` or a subclass of the "
                         f"`Trackable` class, for export. Got {obj!r} with type {type(obj)}.")  # fmt: skip
    directory = Path(path_of(export_dir))
    keys = {id(value): path for path, value in walk(obj) if is_variable(value)}
    functions: dict[str, list[tuple[Record, bytes]]] = {}
    for name, concrete in _functions(obj):
        try:
            program = exported(concrete, keys)
        except NotExported as exc:
            _log.warning("tf.saved_model.save: %s is left out. %s", name, exc)
            continue
        functions.setdefault(name, []).append(program)
    given = {name: exported(one, keys) for name, one in _signatures(obj, signatures)}
    directory.mkdir(parents=True, exist_ok=True)
    if is_layer(obj) and hasattr(obj, "save"):
        obj.save(str(directory / _KERAS))
    write(obj, str(directory / "variables" / "variables"))
    files = directory / "functions"
    files.mkdir(exist_ok=True)
    index: dict[str, Any] = {"functions": {}, "signatures": {}, "variables": _described(obj), "tree": _tree(obj)}

    def put(kind: str, name: str, number: int, record: Record, program: bytes) -> dict[str, Any]:
        file = f"{kind}-{name}-{number}.jax"
        write_regular(files / file, program)
        return {"file": file, "record": record.as_json()}

    for name, several in functions.items():
        index["functions"][name] = [put("function", name, i, *one) for i, one in enumerate(several)]
    for name, one in given.items():
        index["signatures"][name] = put("signature", name, 0, *one)
    write_regular(directory / _INDEX, json.dumps(index).encode())


def _functions(obj: Any) -> Iterator[tuple[str, ConcreteFunction]]:
    """The functions in an object's attributes that say what they take."""
    if is_layer(obj):
        return
    for name in dir(type(obj)) + list(vars(obj)):
        if name.startswith("_") and name != "__call__":
            continue
        value = getattr(obj, name, None)
        if isinstance(value, Function) and value.input_signature is not None:
            yield name, value.get_concrete_function()
        elif isinstance(value, Function):
            found = value.concrete_functions()
            if not found and not inspect.signature(value.python_function).parameters:
                found = [value.get_concrete_function()]  # only replicas have called it, and they pass nothing
            yield from ((name, one) for one in found)


def _signatures(obj: Any, given: Any) -> Iterator[tuple[str, ConcreteFunction]]:
    if given is None and is_layer(obj):
        if (concrete := _call_of(obj)) is not None:
            yield DEFAULT, concrete
        return
    named = given if isinstance(given, Mapping) else {} if given is None else {DEFAULT: given}
    for name, value in named.items():
        if isinstance(value, Function):
            if value.input_signature is None and len(value.concrete_functions()) != 1:
                raise ValueError(
                    f"Expected a TensorFlow function for which to generate a signature, but {name} has no "
                    "`input_signature`: give it one, or use `get_concrete_function`."
                )
            value = value.get_concrete_function() if value.input_signature else value.concrete_functions()[0]
        if not isinstance(value, ConcreteFunction):
            raise ValueError(f"Expected a TensorFlow function for the signature {name}, got {value!r}.")
        args, kwargs = value.structured_input_signature
        inner = Function(as_signature(value.function.python_function))
        inner.__wrapped__ = value.function.python_function  # type: ignore[attr-defined]
        yield name, ConcreteFunction(inner, args, kwargs)


def _call_of(model: Any) -> ConcreteFunction | None:
    """The call of a model of Keras's whose inputs are known."""
    try:
        inputs = model.inputs
        specs = [TensorSpec([None, *one.shape[1:]], str(one.dtype), one.name) for one in inputs]
    except (AttributeError, TypeError, ValueError):
        _log.warning("%s has no known inputs: it is saved without a signature.", model)
        return None

    def call(*tensors: Any) -> Any:
        return model(list(tensors) if len(tensors) > 1 else tensors[0], training=False)

    return ConcreteFunction(Function(as_signature(call)), specs, {})


def _described(obj: Any) -> dict[str, Any]:
    return {
        path: {"trainable": bool(value.trainable), "name": value.name}
        for path, value in walk(obj)
        if is_variable(value)
    }


def _tree(obj: Any) -> Any:
    """The names of attributes, down to the paths of variables."""
    paths = {id(value): path for path, value in walk(obj)}

    def of(value: Any, above: tuple[int, ...]) -> Any:
        if is_variable(value):
            return paths[id(value)]
        parts = {name: one for name, one in children(value) if id(one) not in above and "/" not in name}
        kind = "list" if isinstance(value, list | tuple) else "dict" if isinstance(value, Mapping) else "object"
        return {kind: {name: of(one, (*above, id(one))) for name, one in parts.items()}}

    return of(obj, (id(obj),))


class Loaded(Module):
    """What was saved: its variables and functions, as attributes."""

    def __init__(self) -> None:
        super().__init__(name="loaded")
        self.signatures: dict[str, Callable[..., Any]] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the object gives, if it could be called.

        Raises:
          TypeError: it could not.
        """
        function = vars(self).get("_call")
        if function is None:
            raise TypeError("'_UserObject' object is not callable")
        return function(*args, **kwargs)


class _Several:
    """A function of which there is a program for each kind of arguments."""

    def __init__(self, name: str, functions: list[LoadedFunction]) -> None:
        self.name = name
        self.concrete_functions = functions

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for function in self.concrete_functions:
            if function.fits(args, kwargs):
                return function(*args, **kwargs)
        kinds = "; ".join(str(one.inputs) for one in self.concrete_functions)
        raise ValueError(f"Could not find matching concrete function to call loaded from the SavedModel: {self.name} "
                         f"was saved for {kinds}.")  # fmt: skip


def load(export_dir: Any, tags: Any = None, options: Any = None) -> Any:
    """What `save` has written, or a model of Keras's that was saved to a directory.

    Raises:
      OSError: there is none, or TensorFlow has written it.
    """
    del tags, options
    directory = Path(path_of(export_dir))
    if not (directory / _INDEX).is_file():
        if (directory / _KERAS).is_file():
            return _of_keras(directory)
        if (directory / "saved_model.pb").is_file():
            raise OSError(
                f"{directory} is a SavedModel of TensorFlow's or of TensorFlow 1's front end; its functions "
                "cannot be read here. Read its variables with tf.train.load_checkpoint(path + '/variables/variables')."
            )
        raise OSError(f"SavedModel file does not exist at: {directory}/{{saved_model.pbtxt|saved_model.pb}}")
    try:
        return _loaded(directory)
    except _DAMAGE as exc:
        raise OSError(f"{directory} is a damaged SavedModel: {type(exc).__name__}: {exc}") from exc


def _loaded(directory: Path) -> Any:
    index = json.loads(read_regular(directory / _INDEX, MOST_INDEX_BYTES))
    variables: dict[str, Any] = {}
    snapshot = Snapshot(str(directory / "variables" / "variables"))
    root = _built(index["tree"], index["variables"], snapshot, variables)
    Restoration(root, snapshot)

    def function(name: str, entry: Any, *, signature: bool) -> LoadedFunction:
        record = Record(**entry["record"])
        if not is_plain_name(entry["file"]):
            raise ValueError(f"the file of {name} would lie outside: {entry['file'][:100]!r}")
        program = read_regular(directory / "functions" / entry["file"], MOST_PROGRAM_BYTES)
        reads, writes = ([variables[one] for one in names] for names in (record.reads, record.writes))
        return LoadedFunction(record, program, reads, writes, name=name, as_signature=signature)

    for name, entries in index["functions"].items():
        several = _Several(name, [function(name, one, signature=False) for one in entries])
        object.__setattr__(root, "_call" if name == "__call__" else name, several)
    root.signatures = {name: function(name, one, signature=True) for name, one in index["signatures"].items()}
    if "_call" not in vars(root) and DEFAULT in root.signatures and (directory / _KERAS).is_file():
        served = root.signatures[DEFAULT]
        object.__setattr__(root, "_call", lambda *args, **_: _only(served(*args)))
    return root


def _only(found: Mapping[str, Any]) -> Any:
    return next(iter(found.values())) if len(found) == 1 else found


def _built(tree: Any, described: Any, snapshot: Snapshot, variables: dict[str, Any]) -> Any:
    if isinstance(tree, str):
        if tree not in variables:
            about = described[tree]
            value = snapshot.values[f"{tree}/.ATTRIBUTES/VARIABLE_VALUE"]
            variables[tree] = Variable(value, trainable=about["trainable"], name=about["name"].partition(":")[0])
        return variables[tree]
    ((kind, parts),) = tree.items()
    made = {name: _built(one, described, snapshot, variables) for name, one in parts.items()}
    if kind == "list":
        return list(made.values())
    if kind == "dict":
        return made
    found = Loaded()
    for name, one in made.items():
        object.__setattr__(found, name, one)
    return found


def _of_keras(directory: Path) -> Any:
    """A model of Keras's, with the signature that TensorFlow would have given it."""
    from trainband.compat.tf2.keras_names import keras_module

    model = keras_module().models.load_model(str(directory), compile=False)
    concrete = _call_of(model)
    model.signatures = {} if concrete is None else {DEFAULT: concrete}
    return model


def contains_saved_model(export_dir: Any) -> bool:
    """Whether a directory has what `load` reads."""
    directory = Path(path_of(export_dir))
    return (directory / _INDEX).is_file() or (directory / _KERAS).is_file()
