"""`tf.contrib.slim`'s ways to train and to evaluate: `learning.train` and `evaluation.evaluate_once`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from trainband.compat.checkpoints.files import latest_checkpoint
from trainband.compat.ops import clipping, math
from trainband.compat.tf1.graphs.errors import InvalidArgumentError
from trainband.compat.tf1.graphs.graph import Graph, get_default_graph
from trainband.compat.tf1.graphs.graph_keys import GraphKeys
from trainband.compat.tf1.graphs.record import convert
from trainband.compat.tf1.graphs.slices import IndexedSlices
from trainband.compat.tf1.networks.contrib_training import multiply_gradients as multiply_gradients
from trainband.compat.tf1.operations import summary
from trainband.compat.tf1.operations.clip import global_norm
from trainband.compat.tf1.operations.control_flow import group, with_dependencies
from trainband.compat.tf1.operations.recorder import recorded
from trainband.compat.tf1.operations.state import local_variables_initializer, tables_initializer
from trainband.compat.tf1.operations.summary import FileWriter
from trainband.compat.tf1.scripts import logging
from trainband.compat.tf1.sessions.session import Session
from trainband.compat.tf1.training.global_step import get_or_create_global_step
from trainband.compat.tf1.training.queue_runner import start_queue_runners
from trainband.compat.tf1.training.saver import Saver
from trainband.compat.tf1.training.summary_hooks import default_summary
from trainband.compat.tf1.training.supervisor import Supervisor

USE_DEFAULT = 0
_clip_by_norm = recorded(clipping.clip_by_norm)


def clip_gradient_norms(gradients_to_variables: Any, max_norm: float) -> list[tuple[Any, Any]]:
    """Each gradient, scaled down where its norm is larger than a limit."""
    found = []
    for gradient, variable in gradients_to_variables:
        if isinstance(gradient, IndexedSlices):
            values = _clip_by_norm(gradient.values, max_norm)
            gradient = IndexedSlices(values, gradient.indices, gradient.dense_shape)
        elif gradient is not None:
            gradient = _clip_by_norm(gradient, max_norm)
        found.append((gradient, variable))
    return found


def add_gradients_summaries(grads_and_vars: Any) -> list[Any]:
    """Summaries of gradients and of their norms."""
    found = []
    for gradient, variable in grads_and_vars:
        if gradient is not None:
            values = gradient.values if isinstance(gradient, IndexedSlices) else gradient
            found.append(summary.histogram(variable.op.name + "_gradient", values))
            found.append(summary.scalar(variable.op.name + "_gradient_norm", global_norm([values])))
    return found


def create_train_op(
    total_loss: Any,
    optimizer: Any,
    global_step: Any = USE_DEFAULT,
    update_ops: Any = None,
    variables_to_train: Any = None,
    clip_gradient_norm: float = 0,
    summarize_gradients: bool = False,
    gate_gradients: Any = 1,
    aggregation_method: Any = None,
    colocate_gradients_with_ops: bool = False,
    gradient_multipliers: Any = None,
    check_numerics: bool = True,
) -> Any:
    """Return the loss, which makes one step of an optimizer when it is computed."""
    del check_numerics  # `train_step` looks at the loss
    graph = get_default_graph()
    step = get_or_create_global_step() if isinstance(global_step, int) else global_step
    updates = list(graph.get_collection(GraphKeys.UPDATE_OPS) if update_ops is None else update_ops)
    target = convert(total_loss)
    if updates:
        target = with_dependencies(updates, target)
    trained = variables_to_train or graph.get_collection(GraphKeys.TRAINABLE_VARIABLES)
    pairs = optimizer.compute_gradients(
        target,
        trained,
        gate_gradients=gate_gradients,
        aggregation_method=aggregation_method,
        colocate_gradients_with_ops=colocate_gradients_with_ops,
    )
    if gradient_multipliers:
        pairs = multiply_gradients(pairs, gradient_multipliers)
    if clip_gradient_norm > 0:
        pairs = clip_gradient_norms(pairs, clip_gradient_norm)
    if summarize_gradients:
        add_gradients_summaries(pairs)
    made = optimizer.apply_gradients(pairs, global_step=step)
    with graph.name_scope("train_op"):
        train_op = with_dependencies([made], target)
    graph.add_to_collection(GraphKeys.TRAIN_OP, train_op)
    return train_op


def train_step(sess: Any, train_op: Any, global_step: Any, train_step_kwargs: dict[str, Any]) -> tuple[Any, bool]:
    """Run one step; (the loss, whether it was the last).

    Raises:
      InvalidArgumentError: the loss is not finite.
    """
    start = time.time()
    loss, step = sess.run([train_op, global_step])
    if not np.all(np.isfinite(loss)):
        raise InvalidArgumentError(None, train_op.op, "LossTensor is inf or nan")
    every, last = train_step_kwargs.get("log_every_n_steps"), train_step_kwargs.get("number_of_steps")
    if every and step % every == 0:
        logging.info("global step %d: loss = %.4f (%.3f sec/step)", step, loss, time.time() - start)
    return loss, last is not None and step >= last


def train(
    train_op: Any,
    logdir: Any,
    train_step_fn: Callable[..., tuple[Any, Any]] = train_step,
    train_step_kwargs: Any = USE_DEFAULT,
    log_every_n_steps: int | None = 1,
    graph: Graph | None = None,
    master: str = "",
    is_chief: bool = True,
    global_step: Any = None,
    number_of_steps: int | None = None,
    init_op: Any = USE_DEFAULT,
    init_feed_dict: Any = None,
    local_init_op: Any = USE_DEFAULT,
    init_fn: Any = None,
    ready_op: Any = USE_DEFAULT,
    summary_op: Any = USE_DEFAULT,
    save_summaries_secs: float = 600,
    summary_writer: Any = USE_DEFAULT,
    startup_delay_steps: int = 0,
    saver: Any = None,
    save_interval_secs: float = 600,
    sync_optimizer: Any = None,  # noqa: ARG001 - there are no tokens or queues to prepare
    session_config: Any = None,
    session_wrapper: Any = None,
    trace_every_n_steps: Any = None,  # noqa: ARG001
    ignore_live_threads: bool = False,  # noqa: ARG001
) -> Any:
    """Train until a number of steps; saves and writes summaries at intervals if there is a `logdir`.

    Returns:
      The last loss.

    Raises:
      ValueError: there is no train operation.
    """
    if train_op is None:
        raise ValueError("train_op cannot be None.")
    graph = graph or get_default_graph()
    with graph.as_default(), graph.name_scope(None):
        step = get_or_create_global_step() if global_step is None else global_step
        saver = Saver() if saver is None else saver
        given = train_step_kwargs
        if given == USE_DEFAULT:
            given = {"number_of_steps": number_of_steps, "log_every_n_steps": log_every_n_steps}
            if number_of_steps is not None:
                given["should_stop"] = recorded(math.greater_equal)(step, number_of_steps)
            if log_every_n_steps:
                given["should_log"] = recorded(math.equal)(recorded(math.floormod)(step, log_every_n_steps), 0)
        supervisor = Supervisor(
            graph=graph,
            is_chief=is_chief,
            logdir=logdir,
            init_op=init_op,
            init_feed_dict=init_feed_dict,
            local_init_op=local_init_op,
            ready_op=ready_op,
            summary_op=summary_op if logdir else None,
            summary_writer=summary_writer,
            global_step=step,
            saver=saver,
            save_summaries_secs=save_summaries_secs,
            save_model_secs=save_interval_secs,
            init_fn=init_fn,
        )
    loss = None
    with supervisor.managed_session(master, config=session_config) as session:
        wrapped = session if session_wrapper is None else session_wrapper(session)
        while startup_delay_steps > 0 and wrapped.run(step) < min(startup_delay_steps, number_of_steps or 2**62):
            time.sleep(1.0)
        while not supervisor.should_stop():
            loss, is_last = train_step_fn(wrapped, train_op, step, given)
            if is_last:
                supervisor.request_stop()
        if logdir and supervisor.is_chief:
            logging.info("Finished training! Saving model to disk.")
            saver.save(session, supervisor.save_path, global_step=step)
    return loss


# --- evaluation


def evaluate_once(
    master: str,
    checkpoint_path: str,
    logdir: Any,
    num_evals: int = 1,
    initial_op: Any = None,
    initial_op_feed_dict: Any = None,
    eval_op: Any = None,
    eval_op_feed_dict: Any = None,
    final_op: Any = None,
    final_op_feed_dict: Any = None,
    summary_op: Any = USE_DEFAULT,
    summary_op_feed_dict: Any = None,
    variables_to_restore: Any = None,
    session_config: Any = None,
    hooks: Any = None,
) -> Any:
    """Restore a checkpoint and evaluate it: return the value of `final_op` after `num_evals` runs of `eval_op`."""
    if hooks:
        raise ValueError("evaluate_once does not take hooks.")
    graph = get_default_graph()
    with graph.as_default():
        saver = Saver(variables_to_restore)
        shown = default_summary(graph) if isinstance(summary_op, int) else summary_op
        ready = [] if graph.finalized else [group(local_variables_initializer(), tables_initializer())]
        with Session(master, graph, session_config) as session:
            session.run(ready)
            saver.restore(session, checkpoint_path)
            start_queue_runners(session)
            if initial_op is not None:
                session.run(initial_op, initial_op_feed_dict)
            for _ in range(num_evals if eval_op is not None else 0):
                session.run(eval_op, eval_op_feed_dict)
            if shown is not None and logdir:
                writer = FileWriter(str(logdir))
                writer.add_summary(session.run(shown, summary_op_feed_dict), session.run(get_or_create_global_step()))
                writer.close()
            return None if final_op is None else session.run(final_op, final_op_feed_dict)


def checkpoints_iterator(
    checkpoint_dir: Any, min_interval_secs: float = 0, timeout: float | None = None, timeout_fn: Any = None
) -> Iterator[str]:
    """Each new checkpoint of a directory, until none comes within a timeout."""
    last = None
    while True:
        began = time.time()
        while (found := latest_checkpoint(checkpoint_dir)) is None or found == last:
            if timeout is not None and time.time() - began > timeout:
                if timeout_fn is None or timeout_fn():
                    return
                began = time.time()
            time.sleep(min(1.0, timeout or 1.0))
        last = found
        yield found
        time.sleep(max(0.0, began + min_interval_secs - time.time()))


def evaluation_loop(
    master: str,
    checkpoint_dir: Any,
    logdir: Any,
    num_evals: int = 1,
    initial_op: Any = None,
    initial_op_feed_dict: Any = None,
    init_fn: Any = None,  # noqa: ARG001
    eval_op: Any = None,
    eval_op_feed_dict: Any = None,
    final_op: Any = None,
    final_op_feed_dict: Any = None,
    summary_op: Any = USE_DEFAULT,
    summary_op_feed_dict: Any = None,
    variables_to_restore: Any = None,
    eval_interval_secs: float = 60,
    max_number_of_evaluations: int | None = None,
    session_config: Any = None,
    timeout: float | None = None,
    timeout_fn: Any = None,
    hooks: Any = None,
) -> Any:
    """Evaluate each new checkpoint of a directory; return the last value of `final_op`."""
    value = None
    iterator = checkpoints_iterator(checkpoint_dir, eval_interval_secs, timeout, timeout_fn)
    for number, path in enumerate(iterator, 1):
        value = evaluate_once(
            master,
            path,
            logdir,
            num_evals,
            initial_op,
            initial_op_feed_dict,
            eval_op,
            eval_op_feed_dict,
            final_op,
            final_op_feed_dict,
            summary_op,
            summary_op_feed_dict,
            variables_to_restore,
            session_config,
            hooks,
        )
        if max_number_of_evaluations is not None and number >= max_number_of_evaluations:
            break
    return value


def analyze_vars(variables: Sequence[Any], print_info: bool = False) -> tuple[int, int]:
    """(how many numbers some variables have, how many bytes they take)."""
    sizes = [int(one.get_shape().num_elements() or 0) for one in variables]
    bytes_ = [size * one.dtype.size for size, one in zip(sizes, variables, strict=True)]
    if print_info:
        for one, size, number in zip(variables, sizes, bytes_, strict=True):
            print(f"{one.name} ({one.dtype.name} {one.get_shape()}) [{size}, bytes: {number}]")
        print(f"Total size of variables: {sum(sizes)}\nTotal bytes of variables: {sum(bytes_)}")
    return sum(sizes), sum(bytes_)
