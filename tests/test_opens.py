"""Files are opened by `runtime/regular_files.py`, or the reason why not is listed here.

A directory that other users can write into may hold a FIFO, a device, a huge file or a symbolic link under any name. A
plain `open` waits for the first, never ends with the second, and writes through the last.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1] / "src" / "trainband"

METHODS = {"read_text", "read_bytes", "write_text", "write_bytes", "touch"}
FUNCTIONS = {
    *("open", "io.open", "io.FileIO", "os.open", "codecs.open", "tokenize.open", "gzip.open", "bz2.open", "lzma.open"),
    *("gzip.GzipFile", "wave.open", "tarfile.open", "zipfile.ZipFile", "shelve.open", "sqlite3.connect"),
    *("np.load", "np.save", "np.savez", "np.savez_compressed", "np.memmap", "np.fromfile", "np.loadtxt"),
    *("np.genfromtxt", "np.savetxt", "h5py.File", "safe_open", "load_file", "save_file", "Image.open", "image.open"),
    *("pa.memory_map", "pa.OSFile", "pa.input_stream", "pa.output_stream", "pq.read_table", "pq.ParquetFile"),
    *("shutil.copy", "shutil.copy2", "shutil.copyfile", "shutil.move", "logging.FileHandler", "RecordWriter"),
}
MODES = set("rwxab+t")
SAFE = ("file", "raw", "fixed", "opened", "readable", "weights")
"""Names of open files, and of paths that `fixed_path` gave."""

KERNEL = "the kernel's own files, under /proc and /sys"
OWN = "a directory that only this user can enter, made by `mkdtemp`, or a file that was made there"
NEW = "a directory that this process has just made under a hidden name, which it then renames"
NAMED = "the user names the file on the command line: a FIFO, such as <(...), is their own choice"
SCRIPT = "the script names the file, and opens what it names, as with Python's own open"
PACKAGE = "a part of the installed package, or of the script"
ALONE = "runs without trainband; `Artifact.verify` has compared every file with its hash"
EXCLUSIVE = "makes a new file (O_EXCL)"
HELPER = "is the helper, or opens nothing to read or write (O_PATH, fsync)"
COPIES = "shutil refuses to copy a FIFO; the copy is in a directory that only this user can enter"

ALLOWED: dict[str, dict[str, set[str]]] = {
    KERNEL: {
        "cli/doctor/accelerators.py": {"nvidia"},
        "cli/doctor/machine.py": {"_memory"},
        "cli/doctor/networks.py": {"_read"},
        "launch/exec_gate.py": {"_make_session_nice"},
        "runtime/available_memory.py": {"available_bytes", "_groups", "_fields"},
        "runtime/memory.py": {"resident_bytes", "process_memory", "_children"},
        "runtime/process_metrics.py": {"process_families"},
        "spmd/coordination.py": {"_hushed"},
    },
    OWN: {
        "cluster/resolvers/joined.py": {"report_history", "report_joined", "reported_history"},
        "compat/tf2/keras/saving.py": {"_save_h5"},
        "export/converters/environment.py": {"run_script"},
        "export/converters/run_saved_model.py": {"run", "main"},
        "export/converters/write_litert.py": {"convert", "main"},
        "export/converters/write_saved_model.py": {"save", "main"},
        "export/targets/litert.py": {"LiteRT.write"},
        "export/targets/saved_model.py": {"SavedModel.write", "SavedModel.load.run"},
        "launch/backends/kubernetes.py": {"Kubernetes._job"},
        "launch/backends/slurm.py": {"Slurm.prepare.script"},
        "launch/function_program.py": {"main"},
        "launch/job_files.py": {"JobFiles.make"},
        "launch/machines/remote_task.py": {"header", "RemoteTask.run"},
        "launch/slurm/submitted_job.py": {"SubmittedJob._exit_code"},
    },
    NEW: {
        "compress/compressed.py": {"Compressed.save"},
        "export/artifact.py": {"write_manifest"},
        "export/targets/stablehlo.py": {"StableHLO.write"},
        "model/weights_file.py": {"write_weights"},
    },
    NAMED: {
        "compat/__main__.py": {"_write"},
        "cli/predictor.py": {"example_from"},
        "cli/tensorflow_script.py": {"for_strategy"},
        "launch/backends/kubernetes.py": {"_sent"},
        "launch/backends/ray.py": {"Ray._runtime_env"},
        "launch/backends/ssh.py": {"Ssh.prepare"},
    },
    SCRIPT: {
        "compat/tf1/input/readers.py": {"write_file.write"},
        "compat/tf1/input/record_files.py": {"TFRecordWriter.__init__"},
        "compat/tf1/models/callbacks.py": {"CSVLogger.on_train_begin"},
        "compat/tf1/models/weight_files.py": {"_opened"},
        "compat/tf1/scripts/files.py": {"Copy", "GFile._reading", "GFile._writing"},
        "compat/tf2/data/contents.py": {"write_file"},
    },
    PACKAGE: {
        "compat/tf1/scripts/resources.py": {"load_resource"},
        "data/digits.py": {"read_rows"},
        "monitor/page/routes.py": {"static_file"},
        "version.py": {"build"},
    },
    ALONE: {"export/loader.py": {"read_weights", "read", "main", "_exported_file"}},
    EXCLUSIVE: {"cluster/credentials.py": {"write_secret"}},
    HELPER: {
        "checkpoint/disk.py": {"sync"},
        "ps/program/check/landlock.py": {"_allow"},
        "runtime/regular_files.py": {"_opened", "replacing"},
    },
    COPIES: {"compat/tf2/keras/saving.py": {"_load_weights.load_weights", "load_model", "_load_h5"}},
}


def opens(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """(line, enclosing functions and classes, call) of everything in a module that opens a file by its path."""

    def walk(node: ast.AST, inside: tuple[str, ...]) -> Iterator[tuple[int, str, str]]:
        for child in ast.iter_child_nodes(node):
            name = (child.name,) if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) else ()
            if isinstance(child, ast.Call) and is_open(child):
                yield child.lineno, ".".join(inside), ast.unparse(child)[:100]
            yield from walk(child, (*inside, *name))

    yield from walk(tree, ())


def is_open(call: ast.Call) -> bool:
    function = ast.unparse(call.func)
    first = call.args[0] if call.args else next((k.value for k in call.keywords if k.arg in ("fileobj", "file")), None)
    if function in FUNCTIONS:
        text = "" if first is None else ast.unparse(first)
        return not (text in SAFE or text.startswith("io.BytesIO(") or text == "os.devnull" or _is_new(call.args[1:]))
    if not isinstance(call.func, ast.Attribute):
        return False
    if call.func.attr in METHODS:
        return not ast.unparse(call.func.value).startswith(("Path('/proc/", "Path(f'/proc/"))
    if call.func.attr != "open":
        return False
    is_mode = isinstance(first, ast.Constant) and isinstance(first.value, str) and set(first.value) <= MODES
    return (is_mode or first is None or isinstance(first, ast.IfExp)) and not _is_new(call.args)


def _is_new(arguments: list[ast.expr]) -> bool:
    return bool(arguments) and isinstance(arguments[0], ast.Constant) and "x" in str(arguments[0].value)


def found() -> dict[str, dict[str, list[str]]]:
    """Of each file, by the function that it is in."""
    places: dict[str, dict[str, list[str]]] = {}
    for path in sorted(ROOT.rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        for line, inside, call in opens(ast.parse(path.read_text(encoding="utf-8"))):
            places.setdefault(name, {}).setdefault(inside, []).append(f"{name}:{line}: {call}")
    return places


def test_every_file_is_opened_by_the_helpers_or_for_a_reason() -> None:
    allowed = {(file, inside) for files in ALLOWED.values() for file, names in files.items() for inside in names}
    places = {(file, inside): calls for file, names in found().items() for inside, calls in names.items()}
    new = [call for place, calls in places.items() if place not in allowed for call in calls]
    assert not new, "use trainband.runtime.regular_files, or list the reason:\n" + "\n".join(new)
    assert not allowed - set(places), "no longer there: take it off the list"


def test_the_search_finds_what_it_is_for() -> None:
    source = """
def a(path):
    open(path); path.open("rb"); path.open(); path.read_bytes(); np.load(path); os.open(path, 0); gzip.open(path)
class B:
    def c(self, path):
        path.open("xb"); np.load(file); link.open(hello); Path("/proc/self/stat").read_text(); self.file.write(b"")
        path.open(mode="w"); path.write_text("")
"""
    assert [(inside, call) for _, inside, call in opens(ast.parse(source))] == [
        ("a", "open(path)"),
        ("a", "path.open('rb')"),
        ("a", "path.open()"),
        ("a", "path.read_bytes()"),
        ("a", "np.load(path)"),
        ("a", "os.open(path, 0)"),
        ("a", "gzip.open(path)"),
        ("B.c", "path.open(mode='w')"),
        ("B.c", "path.write_text('')"),
    ]
